// Rows of samples of an image that a displacement field and an affine map pull from it, in voxel units.
#pragma once

#include <array>

#include "arrays.hpp"
#include "interpolate.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace regweave {

using Shape = std::array<std::size_t, 3>;

template <typename Array>
Shape grid_shape(const Array& a) {
    const std::size_t d = a.ndim() - 3;
    return {a.shape(d), a.shape(d + 1), a.shape(d + 2)};
}

inline Sampler sampler_of(const Shape& n) { return Sampler(n[0], n[1], n[2]); }

// Row (i, j) of a field: samples at matrix · (x + u(x)).
inline void positions_of_row(const Matrix& matrix, const float* u, const Shape& n, std::size_t i,
                             std::size_t j, RowPositions& at) {
    const std::size_t volume = n[0] * n[1] * n[2];
    const float* u0 = u + (i * n[1] + j) * n[2];
    const float* u1 = u0 + volume;
    const float* u2 = u1 + volume;
    for (int a = 0; a < 3; ++a) {
        const double* m = matrix.m[a];
        double* p = at.axis[a].data();
        for (std::size_t k = 0; k < n[2]; ++k) {
            p[k] =
                m[0] * (double(i) + u0[k]) + m[1] * (double(j) + u1[k]) + m[2] * (double(k) + u2[k]) + m[3];
        }
    }
}

// Calls row(at, offset) for each line of the field's grid, with the positions it maps to and its place in the
// output.
template <typename Row>
void for_each_row(const Matrix& matrix, const In<float, 4>& field, const Row& row) {
    const Shape n = grid_shape(field);
    parallel_for(int(n[0]), [&](int i) {
        RowPositions at(n[2]);
        RowCells cells(n[2]);
        for (std::size_t j = 0; j < n[1]; ++j) {
            positions_of_row(matrix, field.data(), n, i, j, at);
            row(at, cells, (i * n[1] + j) * n[2]);
        }
    });
}

}  // namespace regweave
