// Kernels of dense displacements and of labels: votes, determinants, folds.
#pragma once

#include "place.hpp"
#include "sampling.hpp"

namespace regweave::gpu {

// The label with the largest weight in the cell; 0 outside.
struct WarpVoted {
    const std::int32_t* labels;
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    std::int32_t* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        out[v] = inside(from, p) ? Cell(from.n, p).voted(labels) : 0;
    }
};
REGWEAVE_KERNEL(WarpVoted)

// det(I + ∂u/∂x), central differences, one-sided at borders.
REGWEAVE_BODY float determinant(const float* u, const Extent& grid, int v) {
    int x[3];
    place_of(grid, v, x);
    float g[3][3];  // columns
    for (int a = 0; a < 3; ++a) {
        const int below = x[a] > 0, above = x[a] + 1 < grid.n[a], stride = stride_of(grid, a);
        const float inverse = above + below > 0 ? 1.0f / float(above + below) : 0.0f;
        for (int c = 0; c < 3; ++c) {
            const float* here = u + c * grid.volume() + v;
            g[a][c] = (here[above * stride] - here[-below * stride]) * inverse + (a == c ? 1.0f : 0.0f);
        }
    }
    return regweave::determinant(g[0], g[1], g[2]);
}

struct Determinant {
    const float* u;
    Extent grid;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const { out[v] = determinant(u, grid, int(v)); }
};
REGWEAVE_KERNEL(Determinant)

// Marks voxels that a step would bring below the least determinant and below what they have; tells of any.
struct Folding {
    const float* before;
    const float* after;
    Extent grid;
    float least_determinant;
    std::uint8_t* mark;
    std::int32_t* any;

    REGWEAVE_BODY void operator()(Index v) const {
        const float found = determinant(after, grid, int(v));
        const bool folds = found < least_determinant && found < determinant(before, grid, int(v));
        mark[v] = folds;
        if (folds) *any = 1;  // every writer writes the same
    }
};
REGWEAVE_KERNEL(Folding)

// Marks the voxel of the shrunken grid over each voxel of the image that folds; tells of any.
struct FoldedBlocks {
    const float* u;
    Extent fine, coarse;
    int factor[3];
    std::uint8_t* mark;
    std::int32_t* any;

    REGWEAVE_BODY void operator()(Index v) const {
        if (determinant(u, fine, int(v)) > 0.0f) return;
        int x[3];
        place_of(fine, int(v), x);
        mark[coarse.at(x[0] / factor[0], x[1] / factor[1], x[2] / factor[2])] = 1;
        *any = 1;
    }
};
REGWEAVE_KERNEL(FoldedBlocks)

// Marks voxels that are marked or have a marked neighbour. Each voxel looks around itself: it writes one
// value, and none that another voxel writes.
struct Dilate {
    const std::uint8_t* mark;
    Extent grid;
    std::uint8_t* out;

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(grid, int(v), x);
        bool found = mark[v] != 0;
        for (int a = 0; a < 3; ++a) {
            const int stride = stride_of(grid, a);
            found = found || (x[a] > 0 && mark[v - stride]) || (x[a] + 1 < grid.n[a] && mark[v + stride]);
        }
        out[v] = found;
    }
};
REGWEAVE_KERNEL(Dilate)

}  // namespace regweave::gpu
