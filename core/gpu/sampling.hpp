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

}  // namespace regweave::gpu
