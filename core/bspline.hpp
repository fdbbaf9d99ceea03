// Uniform cubic B-splines along one axis, as a sparse matrix: free-form deformation is three such products,
// one for each axis, and its adjoint is the three transposed ones.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "parallel.hpp"
#include "require.hpp"
#include "simd.hpp"

namespace regweave {

// Compressed sparse rows, float32 weights; the terms of a row are summed in stored order.
struct AxisMatrix {
    std::vector<std::size_t> start{0};
    std::vector<std::size_t> column;
    std::vector<float> weight;
    std::size_t n_columns = 0;

    std::size_t n_rows() const { return start.size() - 1; }

    AxisMatrix transposed() const {
        AxisMatrix t;
        t.n_columns = n_rows();
        t.start.assign(n_columns + 1, 0);
        t.column.resize(column.size());
        t.weight.resize(weight.size());
        for (auto c : column) ++t.start[c + 1];
        for (std::size_t c = 0; c < n_columns; ++c) t.start[c + 1] += t.start[c];
        std::vector<std::size_t> next(t.start.begin(), t.start.end() - 1);
        for (std::size_t r = 0; r < n_rows(); ++r) {
            for (std::size_t e = start[r]; e < start[r + 1]; ++e) {
                t.column[next[column[e]]] = r;
                t.weight[next[column[e]]++] = weight[e];
            }
        }
        return t;
    }
};

// Row x holds the weights of the control points at origin + index * spacing for voxel x; a control point
// beyond the lattice is its nearest one.
inline AxisMatrix cubic_bspline(std::size_t n_voxels, std::size_t n_nodes, double origin, double spacing) {
    const double begin = -origin / spacing, end = (double(n_voxels) - origin) / spacing;
    require(std::isfinite(begin) && std::isfinite(end),
            "voxels lie too many control spacings from the lattice");
    AxisMatrix m;
    m.n_columns = n_nodes;
    for (std::size_t x = 0; x < n_voxels; ++x) {
        const double t = (double(x) - origin) / spacing;
        const double first = std::floor(t);
        const double u = t - first, v = 1.0 - u;
        const double w[4] = {v * v * v / 6.0, (3.0 * u * u * u - 6.0 * u * u + 4.0) / 6.0,
                             (3.0 * v * v * v - 6.0 * v * v + 4.0) / 6.0, u * u * u / 6.0};
        for (int tap = 0; tap < 4; ++tap) {
            if (w[tap] < 1e-12) continue;  // a voxel on a control point, but for rounding
            const double node = std::min(std::max(first - 1.0 + tap, 0.0), double(n_nodes - 1));
            if (m.column.size() > m.start.back() && m.column.back() == std::size_t(node)) {
                m.weight.back() += float(w[tap]);
                continue;
            }
            m.column.push_back(std::size_t(node));
            m.weight.push_back(float(w[tap]));
        }
        m.start.push_back(m.column.size());
    }
    return m;
}

// The matrices of the three axes for a lattice of control points over a grid of voxels.
inline std::array<AxisMatrix, 3> lattice_axes(const std::array<std::size_t, 3>& voxels,
                                              const std::array<std::size_t, 3>& nodes,
                                              const std::array<double, 3>& origin,
                                              const std::array<double, 3>& spacing) {
    require_grid(voxels, "the grid of voxels");
    require_grid(nodes, "the lattice");
    require_finite(origin, "the origin of the lattice must be finite");
    require_finite(spacing, "the control spacing must be finite");
    std::array<AxisMatrix, 3> axes;
    for (int a = 0; a < 3; ++a) {
        require(spacing[a] > 0.0, "the control spacing must be positive");
        axes[a] = cubic_bspline(voxels[a], nodes[a], origin[a], spacing[a]);
    }
    return axes;
}

// target[k] = sum over the terms (c, w) of row r of w * source[c * stride + k], for k below length.
inline void combine_lines(const AxisMatrix& m, std::size_t r, const float* source, std::size_t stride,
                          std::size_t length, float* target) {
    const std::size_t begin = m.start[r], end = m.start[r + 1];
    std::size_t k = 0;
    for (; k + 16 <= length; k += 16) {
        V8 low = {}, high = {};
        for (std::size_t e = begin; e < end; ++e) {
            const float* line = source + m.column[e] * stride + k;
            low += m.weight[e] * load8(line);
            high += m.weight[e] * load8(line + 8);
        }
        store(target + k, low);
        store(target + k + 8, high);
    }
    for (; k < length; ++k) {
        float sum = 0.0f;
        for (std::size_t e = begin; e < end; ++e) sum += m.weight[e] * source[m.column[e] * stride + k];
        target[k] = sum;
    }
}

// The last axis: up to eight lines side by side, one in each lane, so that a row is one short sum of vectors.
inline void multiply_last_axis(const AxisMatrix& m, const float* in, float* out, std::size_t lines,
                               std::vector<float>& side_by_side) {
    side_by_side.resize(8 * m.n_columns);
    float* beside = side_by_side.data();
    for (std::size_t o = 0; o < lines; ++o)
        for (std::size_t c = 0; c < m.n_columns; ++c) beside[8 * c + o] = in[o * m.n_columns + c];
    for (std::size_t r = 0; r < m.n_rows(); ++r) {
        V8 sum = {};
        for (std::size_t e = m.start[r]; e < m.start[r + 1]; ++e)
            sum += m.weight[e] * load8(beside + 8 * m.column[e]);
        for (std::size_t o = 0; o < lines; ++o) out[o * m.n_rows() + r] = sum[int(o)];
    }
}

// out[o, r, :] = sum over the terms (c, w) of row r of w * in[o, c, :], arrays of shape (outer, columns or
// rows, inner).
inline void multiply_axis(const AxisMatrix& m, const float* in, float* out, std::size_t outer,
                          std::size_t inner) {
    if (inner == 1) {
        const std::size_t block = 64;  // lines of a task
        require(outer <= kMostVoxels, "a free-form deformation has too many lines");
        parallel_for(int((outer + block - 1) / block), [&](int task) {
            const std::size_t end = std::min(outer, (task + 1) * block);
            std::vector<float> side_by_side;
            for (std::size_t o = task * block; o < end; o += 8)
                multiply_last_axis(m, in + o * m.n_columns, out + o * m.n_rows(),
                                   std::min<std::size_t>(8, end - o), side_by_side);
        });
        return;
    }
    // A block of the inner axis keeps the input lines, each used by several rows, in cache.
    const std::size_t block = 512;
    const std::size_t n_blocks = (inner + block - 1) / block;
    require(outer <= kMostVoxels / n_blocks, "a free-form deformation has too many lines");
    parallel_for(int(outer * n_blocks), [&](int task) {
        const std::size_t o = task / n_blocks;
        const std::size_t begin = (task % n_blocks) * block;
        const std::size_t length = std::min(block, inner - begin);
        const float* source = in + o * m.n_columns * inner + begin;
        float* target = out + o * m.n_rows() * inner + begin;
        for (std::size_t r = 0; r < m.n_rows(); ++r, target += inner)
            combine_lines(m, r, source, inner, length, target);
    });
}

}  // namespace regweave
