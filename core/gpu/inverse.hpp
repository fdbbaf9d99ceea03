// The inverse of x -> x + u(x) at each voxel of another grid, u trilinear (host: core/inverse.hpp).
#pragma once

#include "deform.hpp"

namespace regweave::gpu {

REGWEAVE_BODY double det3(const double* a, const double* b, const double* c) {
    return a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) +
           c[0] * (a[1] * b[2] - a[2] * b[1]);
}

REGWEAVE_BODY void apply(const Matrix& matrix, const double* x, double* y) {
    for (int a = 0; a < 3; ++a)
        y[a] = matrix.m[a][0] * x[0] + matrix.m[a][1] * x[1] + matrix.m[a][2] * x[2] + matrix.m[a][3];
}

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

    // Value of u at p and its derivatives [component][axis], in float64.
    REGWEAVE_BODY void linearise(const double* p, double* value, double (*gradient)[3]) const {
        Index corner = 0, step[3];
        double f[3];
        bool outside[3];
        for (int a = 0; a < 3; ++a) {
            const int stride = stride_of(from, a);
            double x = p[a] > 0.0 ? p[a] : 0.0;
            x = x < from.n[a] - 1 ? x : double(from.n[a] - 1);
            const int cell = least(int(x), most(from.n[a] - 2, 0));
            outside[a] = x != p[a];
            f[a] = x - cell;
            corner += Index(cell) * stride;
            step[a] = from.n[a] > 1 ? stride : 0;
        }
        for (int c = 0; c < 3; ++c) {
            const float* v = u + c * from.volume() + corner;
            double* g = gradient[c];
            value[c] = g[0] = g[1] = g[2] = 0.0;
            for (int k = 0; k < 8; ++k) {
                const double here = v[(k & 4 ? step[0] : 0) + (k & 2 ? step[1] : 0) + (k & 1 ? step[2] : 0)];
                const double w0 = k & 4 ? f[0] : 1.0 - f[0], w1 = k & 2 ? f[1] : 1.0 - f[1],
                             w2 = k & 1 ? f[2] : 1.0 - f[2];
                value[c] += w0 * w1 * w2 * here;
                g[0] += (k & 4 ? here : -here) * w1 * w2;
                g[1] += (k & 2 ? here : -here) * w0 * w2;
                g[2] += (k & 1 ? here : -here) * w0 * w1;
            }
            for (int a = 0; a < 3; ++a) g[a] = outside[a] ? 0.0 : g[a];
        }
    }

    // s = -(I + g)^-1 e by Cramer's rule; false where I + g is close to a fold.
    REGWEAVE_BODY static bool newton(const double (*g)[3], const double* e, double* s) {
        const double c0[3] = {1.0 + g[0][0], g[1][0], g[2][0]}, c1[3] = {g[0][1], 1.0 + g[1][1], g[2][1]},
                     c2[3] = {g[0][2], g[1][2], 1.0 + g[2][2]};
        const double d = det3(c0, c1, c2);
        if (!(d > 0.01)) return false;
        s[0] = -det3(e, c1, c2) / d;
        s[1] = -det3(c0, e, c2) / d;
        s[2] = -det3(c0, c1, e) / d;
        return true;
    }

    // Newton steps, halved while they do not improve; near a fold the damped fixed point.
    REGWEAVE_BODY double solve(const double* r, double* p) const {
        double best = INFINITY, best_p[3] = {p[0], p[1], p[2]}, error[3] = {0, 0, 0}, step[3] = {0, 0, 0};
        double length = 1.0;
        bool straight = true;
        for (int iteration = 0; iteration < max_iter; ++iteration) {
            double value[3], gradient[3][3], e[3];
            linearise(p, value, gradient);
            for (int a = 0; a < 3; ++a) e[a] = p[a] + value[a] - r[a];
            const double now = sqrt(e[0] * e[0] + e[1] * e[1] + e[2] * e[2]);
            if (now < best) {
                best = now;
                for (int a = 0; a < 3; ++a) best_p[a] = p[a], error[a] = e[a];
                if (best <= tolerance) break;
                straight = newton(gradient, error, step);
                length = straight ? 1.0 : 0.5;
            } else {
                length *= 0.5;
            }
            if (!straight || length < 0.1) {
                length = straight ? 0.5 : length;
                straight = false;
                for (int a = 0; a < 3; ++a) step[a] = -error[a];
            }
            for (int a = 0; a < 3; ++a) p[a] = best_p[a] + length * step[a];
        }
        for (int a = 0; a < 3; ++a) p[a] = best_p[a];
        return best;
    }

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(to, int(v), x);
        const double q[3] = {double(x[0]), double(x[1]), double(x[2])};
        double r[3], p[3] = {0, 0, 0}, image[3];
        apply(back, q, r);
        // From r - u(r), r - u(r - u(r)) and r in turn, until one leads to a solution; near folds some do
        // not.
        double error = INFINITY, start[3] = {r[0], r[1], r[2]};
        for (int attempt = 0; attempt < 3 && !(error <= tolerance); ++attempt) {
            const Cell cell(from, start);
            double from_here[3];
            for (int a = 0; a < 3; ++a) {
                start[a] = r[a] - double(cell.sample(u + a * from.volume()));
                from_here[a] = attempt < 2 ? start[a] : r[a];
            }
            const double found = solve(r, from_here);
            if (found >= error) continue;
            error = found;
            for (int a = 0; a < 3; ++a) p[a] = from_here[a];
        }
        apply(matrix, p, image);
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
        apply(fixed_mm, at, start);
        apply(fixed_mm, moved, shifted);
        apply(forward, shifted, there_mm);
        const Cell cell(moving, q);
        for (int a = 0; a < 3; ++a) there_mm[a] += double(cell.sample(back + a * moving.volume()));
        apply(inverse, there_mm, returned);
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
        out[v] = inside(from, p) ? Cell(from, p).sample(image) : fill;
    }
};
REGWEAVE_KERNEL(WarpFilled)

}  // namespace regweave::gpu
