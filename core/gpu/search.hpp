// The neighbourhood that a discrete step searches, on a GPU: supports of the nodes, shifts of the labels.
#pragma once

#include "array.hpp"
#include "staged.hpp"

namespace regweave::gpu {

class Search {
  public:
    Search(const std::shared_ptr<Queue>& queue, std::array<std::size_t, 3> shape,
           const std::array<std::vector<std::int32_t>, 3>& starts, std::array<int, 3> size,
           const std::array<std::vector<double>, 3>& offsets);

    const Patches& patches() const { return patches_; }
    const Reach& reach() const { return reach_; }
    Queue& queue() const { return memory_.queue(); }
    const Array& memory() const { return memory_; }
    std::size_t n_nodes() const { return std::size_t(patches_.n_nodes()); }
    std::size_t n_labels() const { return std::size_t(patches_.n_labels()); }
    // Features (C, X, Y, Z) of the grid that is searched.
    const float* features(const Array& a) const;

  private:
    Array memory_;
    Patches patches_;
    Reach reach_;
};

}  // namespace regweave::gpu
