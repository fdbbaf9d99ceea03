// Neighbours on a grid of voxels.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

REGWEAVE_BODY int least(int a, int b) { return a < b ? a : b; }
REGWEAVE_BODY int most(int a, int b) { return a > b ? a : b; }

// Voxels of a plane across the first axis.
REGWEAVE_BODY int plane_of(const Extent& g) { return g.n[1] * g.n[2]; }

// Distance of neighbours along an axis.
REGWEAVE_BODY int stride_of(const Extent& g, int axis) {
    return axis == 0 ? g.n[1] * g.n[2] : axis == 1 ? g.n[2] : 1;
}

REGWEAVE_BODY void place_of(const Extent& g, int v, int* x) { g.place(v, x[0], x[1], x[2]); }

}  // namespace regweave::gpu
