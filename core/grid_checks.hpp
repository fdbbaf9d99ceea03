// Checks of what an engine is given: a grid of nodes, offsets of the labels, numbers that can be added up.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "require.hpp"

namespace regweave {

using Shape = std::array<int, 3>;

inline std::vector<double> to_vector(const In<double, 1>& a) { return {a.data(), a.data() + a.shape(0)}; }

// A grid of nodes whose indices, and those of a slab of guards at each end, are ints.
inline std::size_t require_nodes(const Shape& shape) {
    const std::size_t n = require_grid(shape, "the grid of nodes");
    require(n <= kMostVoxels / 4, "the grid has too many nodes");
    return n;
}

inline std::size_t require_offsets(const In<double, 1>& x, const In<double, 1>& y, const In<double, 1>& z) {
    const std::array<std::size_t, 3> k{x.shape(0), y.shape(0), z.shape(0)};
    for (std::size_t n : k) require(n <= 4096, "there are more than 4096 offsets along an axis");
    return require_grid(k, "the set of labels");
}

// Largest magnitude; refuses what is not finite.
inline double largest(const double* values, std::size_t n, const char* what) {
    require_finite(values, n, what);
    double m = 0;
    for (std::size_t i = 0; i < n; ++i) m = std::max(m, std::fabs(values[i]));
    return m;
}

}  // namespace regweave
