// Neighbours on a grid of voxels.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// Voxels of a plane across the first axis.
REGWEAVE_BODY int plane_of(const Extent& g) { return g.n[1] * g.n[2]; }

// Distance of neighbours along an axis.
REGWEAVE_BODY int stride_of(const Extent& g, int axis) {
    return axis == 0 ? g.n[1] * g.n[2] : axis == 1 ? g.n[2] : 1;
}

REGWEAVE_BODY void place_of(const Extent& g, int v, int* x) { g.place(v, x[0], x[1], x[2]); }

// Central differences, one-sided at the border, 0 along an axis of one voxel.
REGWEAVE_BODY void gradient(const float* m, const Extent& grid, int v, float* g) {
    int x[3];
    place_of(grid, v, x);
    for (int a = 0; a < 3; ++a) {
        const int below = x[a] > 0, above = x[a] + 1 < grid.n[a], stride = stride_of(grid, a);
        const float inverse = above + below == 2 ? 0.5f : float(above + below);
        g[a] = (m[v + above * stride] - m[v - below * stride]) * inverse;
    }
}

}  // namespace regweave::gpu
