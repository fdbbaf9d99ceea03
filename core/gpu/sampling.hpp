// Kernels that look images and fields up between voxels, as core/interpolate.hpp does on the host.
#pragma once

#include "body.hpp"
#include "shared/cell.hpp"

namespace regweave::gpu {

REGWEAVE_BODY void position(const Extent& g, const Matrix& matrix, const float* u, Index v, double* p) {
    int at[3];
    g.place(v, at[0], at[1], at[2]);
    const Index volume = g.volume();
    const double moved[3] = {at[0] + double(u[v]), at[1] + double(u[volume + v]),
                             at[2] + double(u[2 * volume + v])};
    matrix.apply(moved, p);
}

REGWEAVE_BODY bool inside(const Extent& g, const double* p) {
    return inside_axis(p[0], g.n[0]) & inside_axis(p[1], g.n[1]) & inside_axis(p[2], g.n[2]);
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
        const Cell cell(from.n, p);
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
        if (moving_weight) weight *= Cell(from.n, p).sample(moving_weight);
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
        out[v] = inside(from, p) ? Cell(from.n, p).nearest(labels) : fill;
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
        const Cell cell(grid.n, p);
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
        const Cell cell(from.n, p);
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
