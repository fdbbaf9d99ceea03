// The inverse of x -> x + u(x) at one point, u trilinear.
#pragma once

#include "shared/cell.hpp"

namespace regweave {

// s = -(I + g)^-1 e by Cramer's rule; false where I + g is close to a fold.
REGWEAVE_BODY bool newton_step(const double (*g)[3], const double* e, double* s) {
    const double c0[3] = {1.0 + g[0][0], g[1][0], g[2][0]};
    const double c1[3] = {g[0][1], 1.0 + g[1][1], g[2][1]};
    const double c2[3] = {g[0][2], g[1][2], 1.0 + g[2][2]};
    const double d = determinant(c0, c1, c2);
    if (!(d > 0.01)) return false;
    s[0] = -determinant(e, c1, c2) / d;
    s[1] = -determinant(c0, e, c2) / d;
    s[2] = -determinant(c0, c1, e) / d;
    return true;
}

// Move p to a solution of p + u(p) = r and return the distance that is left. Newton steps are halved while
// they do not improve. Near a fold, and where a kink of u defeats Newton, the step is the damped fixed point
// p <- p - (p + u(p) - r) / 2.
REGWEAVE_BODY double invert_point(const int* n, const float* u, const double* r, double* p, int max_iter,
                                  double tolerance) {
    double best = HUGE_VAL;
    double best_p[3] = {p[0], p[1], p[2]}, error[3] = {0.0, 0.0, 0.0}, step[3] = {0.0, 0.0, 0.0};
    double length = 1.0;
    bool newton = true;
    for (int iteration = 0; iteration < max_iter; ++iteration) {
        double value[3], gradient[3][3], e[3];
        linearise(n, u, p, value, gradient);
        for (int a = 0; a < 3; ++a) e[a] = p[a] + value[a] - r[a];
        const double now = sqrt(e[0] * e[0] + e[1] * e[1] + e[2] * e[2]);
        if (now < best) {
            best = now;
            for (int a = 0; a < 3; ++a) best_p[a] = p[a], error[a] = e[a];
            if (best <= tolerance) break;
            newton = newton_step(gradient, error, step);
            length = newton ? 1.0 : 0.5;
        } else {
            length *= 0.5;
        }
        if (!newton || length < 0.1) {
            length = newton ? 0.5 : length;
            newton = false;
            for (int a = 0; a < 3; ++a) step[a] = -error[a];
        }
        for (int a = 0; a < 3; ++a) p[a] = best_p[a] + length * step[a];
    }
    for (int a = 0; a < 3; ++a) p[a] = best_p[a];
    return best;
}

}  // namespace regweave
