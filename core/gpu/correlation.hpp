// Local correlation in cubes of side 2r + 1 and its analytic force, as separable sums (host:
// correlation_force).
#pragma once

#include "penalties.hpp"

namespace regweave::gpu {

// Voxels of the cube that lie inside the image.
REGWEAVE_BODY float count_inside(const Extent& n, int r, const int* p) {
    int count = 1;
    for (int a = 0; a < 3; ++a) count *= least(n.n[a] - 1, p[a] + r) - most(0, p[a] - r) + 1;
    return float(count);
}

// Sums along the last axis of f, f² (rows of the fixed image) or of m, m², f m; zero outside.
struct ProductSums {
    const float* f;
    const float* m;
    float* out;  // (3, X, Y, Z), or (2, …) where m is null
    Extent grid;
    int radius;

    REGWEAVE_BODY void operator()(Index value) const {
        const int v = int(value);
        const int k = v % grid.n[2];
        const int begin = v - least(k, radius), end = v + least(grid.n[2] - 1 - k, radius);
        float a = 0.0f, b = 0.0f, c = 0.0f;
        for (int q = begin; q <= end; ++q) {
            const float fixed = f[q];
            if (m) {
                const float moved = m[q];
                a += moved;
                b += moved * moved;
                c += fixed * moved;
            } else {
                a += fixed;
                b += fixed * fixed;
            }
        }
        const Index volume = grid.volume();
        out[v] = a;
        out[volume + v] = b;
        if (m) out[2 * volume + v] = c;
    }
};
REGWEAVE_KERNEL(ProductSums)

// Sums of channels (C, X, Y, Z) along one axis, zero outside.
struct AxisSums {
    const float* in;
    Extent grid;
    int axis, radius, channels;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int stride = stride_of(grid, axis), x = (int(v) / stride) % grid.n[axis];
        const int begin = -least(x, radius), end = least(grid.n[axis] - 1 - x, radius);
        for (int c = 0; c < channels; ++c) {
            const float* p = in + c * grid.volume() + v;
            float sum = 0.0f;
            for (int d = begin; d <= end; ++d) sum += p[d * stride];
            out[c * grid.volume() + v] = sum;
        }
    }
};
REGWEAVE_KERNEL(AxisSums)

// α = w/(n √(v_m v_f)), β = w ρ/(n v_m), γ = α E f − β E m of a voxel from the sums over its cube, and its
// cost.
struct Slopes {
    const float* fixed;  // (2, X, Y, Z): whole sums of f and f²
    float* out;          // (3, X, Y, Z)
    float* cost;
    Weighing weight;
    Extent grid;
    int radius;
    float floor;
    int squared;

    REGWEAVE_BODY void finish(int v, const int* x, const float* s) const {
        const Index volume = grid.volume();
        const float w = weight.at(v), c = 1.0f / count_inside(grid, radius, x);
        const CorrelationSlope slope(c, fixed[v], s[0], fixed[volume + v], s[1], s[2], w, floor, squared);
        cost[v] += slope.cost;
        out[v] = slope.alpha;
        out[volume + v] = slope.beta;
        out[2 * volume + v] = slope.gamma;
    }
};

// Sums of three channels along the first axis.
REGWEAVE_BODY void first_axis_sums(const float* in, const Extent& grid, int v, int i, int radius, float* s) {
    const int stride = plane_of(grid), begin = -least(i, radius), end = least(grid.n[0] - 1 - i, radius);
    for (int q = 0; q < 3; ++q) {
        const float* p = in + q * grid.volume() + v;
        s[q] = 0.0f;
        for (int d = begin; d <= end; ++d) s[q] += p[d * stride];
    }
}

struct CorrelationSlopes {
    Slopes slopes;
    const float* sums;  // (3, X, Y, Z): sums of m, m², f m along the last two axes

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(slopes.grid, int(v), x);
        float s[3];
        first_axis_sums(sums, slopes.grid, int(v), x[0], slopes.radius, s);
        slopes.finish(int(v), x, s);
    }
};
REGWEAVE_KERNEL(CorrelationSlopes)

// The force −(f Σα − m Σβ − Σγ) ∇m of a voxel from the sums over its cube.
struct Pull {
    const float* f;
    const float* m;
    float* force;
    Extent grid;
    int radius;

    REGWEAVE_BODY void finish(int v, const float* s) const {
        add_force(m, -(f[v] * s[0] - m[v] * s[1] - s[2]), grid, v, force);
    }
};

struct CorrelationForce {
    Pull pull;
    const float* sums;  // (3, X, Y, Z): of α, β, γ along the last two axes

    REGWEAVE_BODY void operator()(Index v) const {
        float s[3];
        first_axis_sums(sums, pull.grid, int(v), int(v) / plane_of(pull.grid), pull.radius, s);
        pull.finish(int(v), s);
    }
};
REGWEAVE_KERNEL(CorrelationForce)

}  // namespace regweave::gpu
