// Arrays on a GPU, as Python holds them: memory that goes back to its queue with its last owner.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "queue.hpp"
#include "require.hpp"

namespace regweave::gpu {

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
    static constexpr char code = 'f';
};
template <>
struct TypeOf<double> {
    static constexpr char code = 'd';
};
template <>
struct TypeOf<std::int32_t> {
    static constexpr char code = 'i';
};
template <>
struct TypeOf<std::uint8_t> {
    static constexpr char code = 'B';
};

inline std::size_t width_of(char type) { return type == 'd' ? 8 : type == 'B' ? 1 : 4; }

class Array {
  public:
    Array(std::shared_ptr<Queue> queue, char type, std::vector<std::size_t> shape)
        : queue_(std::move(queue)), type_(type), shape_(std::move(shape)) {
        memory_ = std::shared_ptr<void>(queue_->take(bytes()), [q = queue_](void* p) { q->give(p); });
    }

    Queue& queue() const { return *queue_; }
    const std::shared_ptr<Queue>& shared_queue() const { return queue_; }
    char type() const { return type_; }
    const std::vector<std::size_t>& shape() const { return shape_; }
    std::size_t size() const {
        std::size_t n = 1;
        for (auto s : shape_) n *= s;
        return n;
    }
    std::size_t bytes() const { return size() * width_of(type_); }
    void* raw() const { return memory_.get(); }

    // The values, as what they are; another type or number of axes is a wrong call.
    template <class T>
    T* data(int axes) const {
        if (type_ != TypeOf<T>::code || int(shape_.size()) != axes)
            throw std::invalid_argument(
                std::string("an array of type ") + type_ + " and " + std::to_string(shape_.size()) +
                " axes where type " + TypeOf<T>::code + " and " + std::to_string(axes) + " axes are needed");
        return static_cast<T*>(raw());
    }
    // The last three axes.
    Extent extent() const {
        require(shape_.size() >= 3, "an array of three axes or more is needed");
        const std::size_t d = shape_.size() - 3;
        require_grid(std::array<std::size_t, 3>{shape_[d], shape_[d + 1], shape_[d + 2]}, "an array");
        return {{int(shape_[d]), int(shape_[d + 1]), int(shape_[d + 2])}};
    }
    // A part along the first axis, or another shape, of the same memory.
    Array part(std::size_t begin, std::size_t end) const {
        require(!shape_.empty() && begin <= end && end <= shape_[0], "the part must lie inside the array");
        Array out(*this);
        const std::size_t row = shape_[0] ? bytes() / shape_[0] : 0;
        out.memory_ = std::shared_ptr<void>(memory_, static_cast<char*>(raw()) + begin * row);
        out.shape_[0] = end - begin;
        return out;
    }
    Array reshaped(std::vector<std::size_t> shape) const {
        Array out(*this);
        out.shape_ = std::move(shape);
        require(out.size() == size(), "the shapes differ in size");
        return out;
    }

  private:
    std::shared_ptr<Queue> queue_;
    char type_;
    std::vector<std::size_t> shape_;
    std::shared_ptr<void> memory_;
};

template <class T>
Array make(const Array& beside, std::vector<std::size_t> shape) {
    return Array(beside.shared_queue(), TypeOf<T>::code, std::move(shape));
}

inline std::vector<std::size_t> lengths(std::initializer_list<std::size_t> n) { return n; }

inline void require_same(const Extent& a, const Extent& b, const char* what) {
    require(a.n[0] == b.n[0] && a.n[1] == b.n[1] && a.n[2] == b.n[2], what);
}

// A displacement (3, X, Y, Z).
inline const float* field_data(const Array& u) {
    const float* p = u.data<float>(4);
    require(u.shape()[0] == 3, "a field must have shape (3, X, Y, Z)");
    return p;
}

}  // namespace regweave::gpu
