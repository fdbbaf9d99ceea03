// Kernels that look images and fields up between voxels, as core/interpolate.hpp does on the host.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// An affine map of voxel positions, (3, 4).
struct Matrix {
    double m[3][4];
};

// A position in a grid: its cell of eight voxels, and how far it is from the cell's lowest corner.
struct Cell {
    Index corner;
    float f[3];
    Index step[3];  // to the next voxel along each axis, 0 along an axis of one voxel

    REGWEAVE_BODY Cell(const Extent& g, const double* p) {
        const Index stride[3] = {Index(g.n[1]) * g.n[2], g.n[2], 1};
        corner = 0;
        for (int a = 0; a < 3; ++a) {
            double x = p[a] > 0.0 ? p[a] : 0.0;  // NaN becomes 0
            const double last = g.n[a] - 1;
            x = x < last ? x : last;
            const int last_cell = g.n[a] > 2 ? g.n[a] - 2 : 0;
            int cell = int(x);
            cell = cell < last_cell ? cell : last_cell;
            f[a] = float(x - cell);
            corner += cell * stride[a];
            step[a] = g.n[a] > 1 ? stride[a] : 0;
        }
    }

    REGWEAVE_BODY static float mix(float a, float b, float t) { return (1.0f - t) * a + t * b; }

    REGWEAVE_BODY float sample(const float* data) const {
        const float* v = data + corner;
        const Index s0 = step[0], s1 = step[1], s2 = step[2];
        const float v00 = mix(v[0], v[s2], f[2]), v01 = mix(v[s1], v[s1 + s2], f[2]);
        const float v10 = mix(v[s0], v[s0 + s2], f[2]), v11 = mix(v[s0 + s1], v[s0 + s1 + s2], f[2]);
        return mix(mix(v00, v01, f[1]), mix(v10, v11, f[1]), f[0]);
    }

    // The voxel at the corner that the position is nearest to.
    REGWEAVE_BODY Index nearest() const {
        Index v = corner;
        for (int a = 0; a < 3; ++a) v += f[a] >= 0.5f ? step[a] : 0;
        return v;
    }
};

REGWEAVE_BODY void position(const Extent& g, const Matrix& matrix, const float* u, Index v, double* p) {
    int at[3];
    g.place(v, at[0], at[1], at[2]);
    const Index volume = g.volume();
    const double x = at[0] + double(u[v]), y = at[1] + double(u[volume + v]),
                 z = at[2] + double(u[2 * volume + v]);
    for (int a = 0; a < 3; ++a) {
        const double* m = matrix.m[a];
        p[a] = m[0] * x + m[1] * y + m[2] * z + m[3];
    }
}

// A voxel reaches half a spacing beyond its centre; a little more decides nothing.
REGWEAVE_BODY bool inside(const Extent& g, const double* p) {
    const double reach = 0.5 + 1e-4;
    bool in = true;
    for (int a = 0; a < 3; ++a) in = in && p[a] >= -reach && p[a] <= g.n[a] - 1 + reach;
    return in;
}

// Channels of an image at matrix · (x + u(x)), (C, X, Y, Z); beyond its grid the border value holds.
struct Warp {
    const float* image;
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    int channels;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        const Cell cell(from, p);
        for (int c = 0; c < channels; ++c) out[c * to.volume() + v] = cell.sample(image + c * from.volume());
    }
};
REGWEAVE_KERNEL(Warp)

// Weight of each voxel: 1 where matrix · (x + u(x)) lies inside the moving grid, times the weights of both
// masks, where there are any.
struct Valid {
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    const float* moving_weight;
    const float* fixed_weight;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        float weight = inside(from, p) ? 1.0f : 0.0f;
        if (moving_weight) weight *= Cell(from, p).sample(moving_weight);
        if (fixed_weight) weight *= fixed_weight[v];
        out[v] = weight;
    }
};
REGWEAVE_KERNEL(Valid)

// The label nearest to matrix · (x + u(x)); `fill` outside the grid of the labels.
struct Nearest {
    const std::int32_t* labels;
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    std::int32_t fill;
    std::int32_t* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        out[v] = inside(from, p) ? labels[Cell(from, p).nearest()] : fill;
    }
};
REGWEAVE_KERNEL(Nearest)

// u ∘ (id + d): d(x) + u(x + d(x)).
struct Compose {
    const float* u;
    const float* d;
    Extent grid;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const Index volume = grid.volume();
        int at[3];
        grid.place(v, at[0], at[1], at[2]);
        double p[3];
        for (int a = 0; a < 3; ++a) p[a] = at[a] + double(d[a * volume + v]);
        const Cell cell(grid, p);
        for (int a = 0; a < 3; ++a) out[a * volume + v] = cell.sample(u + a * volume) + d[a * volume + v];
    }
};
REGWEAVE_KERNEL(Compose)

// A field at scale · x + offset, its components multiplied by `size`.
struct Resample {
    const float* u;
    Extent from, to;
    double scale[3], offset[3];
    float size[3];
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        int at[3];
        to.place(v, at[0], at[1], at[2]);
        double p[3];
        for (int a = 0; a < 3; ++a) p[a] = scale[a] * at[a] + offset[a];
        const Cell cell(from, p);
        for (int a = 0; a < 3; ++a) out[a * to.volume() + v] = cell.sample(u + a * from.volume()) * size[a];
    }
};
REGWEAVE_KERNEL(Resample)

// out[o, r, :] = Σ over the terms (c, w) of row r of w · in[o, c, :], in stored order: a sparse matrix along
// one axis.
struct AxisProduct {
    const std::int32_t* start;
    const std::int32_t* column;
    const float* weight;
    const float* in;
    float* out;
    int rows, columns;
    Index inner;

    REGWEAVE_BODY void operator()(Index v) const {
        const unsigned size = unsigned(inner), line = unsigned(v) / size, x = unsigned(v) - line * size;
        const unsigned o = line / unsigned(rows), r = line - o * unsigned(rows);
        const float* source = in + Index(o) * columns * inner + x;
        float sum = 0.0f;
        for (int e = start[r]; e < start[r + 1]; ++e) sum += weight[e] * source[column[e] * inner];
        out[v] = sum;
    }
};
REGWEAVE_KERNEL(AxisProduct)

}  // namespace regweave::gpu
