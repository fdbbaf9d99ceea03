// Checks at the door of every kernel: a wrong call throws, which Python sees as a ValueError.
//
// They look at shapes and at single numbers, once for each call; voxels are not visited.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace regweave {

inline void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// Indices of voxels are 32-bit, and a row that is padded on both sides must fit as well.
constexpr std::size_t kMostVoxels = INT32_MAX;
constexpr std::size_t kLongestAxis = std::size_t(1) << 28;

// Product of three lengths, each 1 or more, without running over.
template <typename T>
std::size_t require_grid(const std::array<T, 3>& shape, const std::string& name) {
    std::size_t n = 1;
    for (T length : shape) {
        if (length < T(1)) throw std::invalid_argument(name + " has an axis of length 0 or less");
        if (std::size_t(length) > kLongestAxis || std::size_t(length) > kMostVoxels / n)
            throw std::invalid_argument(name +
                                        " has more than 2^31 - 1 voxels, or an axis of more than 2^28");
        n *= std::size_t(length);
    }
    return n;
}

// The last three axes of an array, each 1 or more.
template <typename Array>
std::array<std::size_t, 3> require_volume(const Array& a, const std::string& name) {
    const std::size_t d = a.ndim() - 3;
    const std::array<std::size_t, 3> shape{a.shape(d), a.shape(d + 1), a.shape(d + 2)};
    require_grid(shape, name);
    if (d && a.shape(0) < 1) throw std::invalid_argument(name + " has no channel");
    if (d && a.shape(0) > kMostVoxels) throw std::invalid_argument(name + " has too many channels");
    return shape;
}

template <typename Values>
void require_finite(const Values& values, const char* what) {
    for (double v : values) require(std::isfinite(v), what);
}

inline void require_finite(const double* values, std::size_t n, const char* what) {
    // Infinities and NaN are the numbers whose difference from themselves is not 0; one sum sees them all.
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += values[i] - values[i];
    require(sum == 0, what);
}

}  // namespace regweave
