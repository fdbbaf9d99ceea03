// The inverse of x -> x + u(x) at one point, u trilinear.
#pragma once

#include <cmath>
#include <limits>

#include "interpolate.hpp"

namespace regweave {

inline double norm(const double* v) { return std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]); }

// s = -(I + g)^-1 e by Cramer's rule; false where I + g is close to a fold.
inline bool newton_step(const double (*g)[3], const double* e, double* s) {
    const double c0[3] = {1.0 + g[0][0], g[1][0], g[2][0]};
    const double c1[3] = {g[0][1], 1.0 + g[1][1], g[2][1]};
    const double c2[3] = {g[0][2], g[1][2], 1.0 + g[2][2]};
    auto det = [](const double* a, const double* b, const double* c) {
        return a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) +
               c[0] * (a[1] * b[2] - a[2] * b[1]);
    };
    const double d = det(c0, c1, c2);
    if (!(d > 0.01)) return false;
    s[0] = -det(e, c1, c2) / d;
    s[1] = -det(c0, e, c2) / d;
    s[2] = -det(c0, c1, e) / d;
    return true;
}

// Moves p to a solution of p + u(p) = r and returns how far off it stays. Newton steps, halved while they do
// not improve; near a fold, and where a kink of u defeats Newton, the damped fixed point p <- p - (p + u(p) -
// r) / 2.
inline double invert_point(const Sampler& sampler, const float* u, const double* r, double* p, int max_iter,
                           double tolerance) {
    double best = std::numeric_limits<double>::infinity();
    double best_p[3] = {p[0], p[1], p[2]}, error[3] = {0.0, 0.0, 0.0}, step[3] = {0.0, 0.0, 0.0};
    double length = 1.0;
    bool newton = true;
    for (int iteration = 0; iteration < max_iter; ++iteration) {
        double value[3], gradient[3][3], e[3];
        sampler.linearise(u, p, value, gradient);
        for (int a = 0; a < 3; ++a) e[a] = p[a] + value[a] - r[a];
        const double now = norm(e);
        if (now < best) {
            best = now;
            std::copy_n(p, 3, best_p);
            std::copy_n(e, 3, error);
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
    std::copy_n(best_p, 3, p);
    return best;
}

}  // namespace regweave
