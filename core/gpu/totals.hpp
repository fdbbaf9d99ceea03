// Sums of rows in float64 and smallest values, on the GPU and brought to the host.
#pragma once

#include "array.hpp"
#include "sums.hpp"

namespace regweave::gpu {

// Sums of rows (rows, n), on the GPU: (rows,).
template <class T>
Array row_sums(const Array& beside, const T* values, std::size_t rows, Index n) {
    Queue& q = beside.queue();
    const Array strands = make<double>(beside, {rows * kStrands}),
                bundles = make<double>(beside, {rows * kBundle});
    const Array out = make<double>(beside, {rows});
    q.launch(StrandSums<T>{values, n, strands.template data<double>(1)}, Index(rows) * kStrands);
    q.launch(BundleSums{strands.template data<double>(1), bundles.template data<double>(1)},
             Index(rows) * kBundle);
    q.launch(BundleSums{bundles.template data<double>(1), out.template data<double>(1)}, Index(rows));
    return out;
}

// Values on the host; waits.
inline std::vector<double> fetched(const Array& sums) {
    std::vector<double> out(sums.size());
    sums.queue().download(out.data(), sums.raw(), sums.bytes());
    return out;
}

inline float least_of(const Array& beside, const float* values, Index n) {
    require(n > 0, "an empty array has no smallest value");
    Queue& q = beside.queue();
    const Array strands = make<float>(beside, {kStrands}), bundles = make<float>(beside, {kBundle});
    const Array out = make<float>(beside, {1});
    q.launch(StrandLeast{values, n, strands.data<float>(1)}, kStrands);
    q.launch(BundleLeast{strands.data<float>(1), bundles.data<float>(1)}, kBundle);
    q.launch(BundleLeast{bundles.data<float>(1), out.data<float>(1)}, 1);
    float found = 0;
    q.download(&found, out.raw(), sizeof found);
    return found;
}

// Channels (C, X, Y, Z) smoothed along each axis by the weights of one side, the voxel itself first.
Array gaussian(const Array& image, const std::array<std::vector<double>, 3>& weights);

}  // namespace regweave::gpu
