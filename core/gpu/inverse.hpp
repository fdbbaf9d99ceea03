// The inverse of x -> x + u(x) at each voxel of another grid, u trilinear.
#pragma once

#include "deform.hpp"
#include "shared/inverse.hpp"

namespace regweave::gpu {

// Solves matrix · (p + u(p)) = q for each voxel q; writes matrix · p - q and |p + u(p) - r|, r = matrix⁻¹ q.
struct Invert {
    const float* u;
    Extent from;
    Matrix matrix, back;
    Extent to;
    int max_iter;
    double tolerance;
    float* out;
    float* residual;

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(to, int(v), x);
        const double q[3] = {double(x[0]), double(x[1]), double(x[2])};
        double r[3], p[3] = {0, 0, 0}, image[3];
        back.apply(q, r);
        // From r - u(r), r - u(r - u(r)) and r in turn, until one leads to a solution; near folds some do
        // not.
        double error = INFINITY, start[3] = {r[0], r[1], r[2]};
        for (int attempt = 0; attempt < 3 && !(error <= tolerance); ++attempt) {
            const Cell cell(from.n, start);
            double from_here[3];
            for (int a = 0; a < 3; ++a) {
                start[a] = r[a] - double(cell.sample(u + a * from.volume()));
                from_here[a] = attempt < 2 ? start[a] : r[a];
            }
            const double found = invert_point(from.n, u, r, from_here, max_iter, tolerance);
            if (found >= error) continue;
            error = found;
            for (int a = 0; a < 3; ++a) p[a] = from_here[a];
        }
        matrix.apply(p, image);
        residual[v] = float(error);
        for (int a = 0; a < 3; ++a) out[a * to.volume() + v] = float(image[a] - q[a]);
    }
};
REGWEAVE_KERNEL(Invert)

// Millimetres between each fixed voxel and where it ends, there and back; NaN where it leaves the moving
// grid.
struct ReturnErrors {
    const float* u;  // of the way there, in voxels
    Extent grid;
    Matrix there;       // voxels of the fixed grid to those of the moving one
    const float* back;  // displacement of the way back, in millimetres
    Extent moving;
    Matrix fixed_mm, forward, inverse;  // voxels of the fixed grid to millimetres; affine parts of both ways
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double q[3];
        position(grid, there, u, v, q);
        if (!inside(moving, q)) {
            out[v] = NAN;
            return;
        }
        int x[3];
        place_of(grid, int(v), x);
        double at[3], moved[3], start[3], shifted[3], there_mm[3], returned[3], sum = 0.0;
        for (int a = 0; a < 3; ++a) {
            at[a] = x[a];
            moved[a] = x[a] + double(u[a * grid.volume() + v]);
        }
        fixed_mm.apply(at, start);
        fixed_mm.apply(moved, shifted);
        forward.apply(shifted, there_mm);
        const Cell cell(moving.n, q);
        for (int a = 0; a < 3; ++a) there_mm[a] += double(cell.sample(back + a * moving.volume()));
        inverse.apply(there_mm, returned);
        for (int a = 0; a < 3; ++a) sum += (returned[a] - start[a]) * (returned[a] - start[a]);
        out[v] = float(sqrt(sum));
    }
};
REGWEAVE_KERNEL(ReturnErrors)

// An image at matrix · (x + u(x)), `fill` outside.
struct WarpFilled {
    const float* image;
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    float fill;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        out[v] = inside(from, p) ? Cell(from.n, p).sample(image) : fill;
    }
};
REGWEAVE_KERNEL(WarpFilled)

}  // namespace regweave::gpu
