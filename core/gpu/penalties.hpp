// Penalties compared voxel by voxel, and the smoothness, with their derivatives by the displacement.
//
// Moving the moved image m by δ changes it by ∇m · δ, so the force at a voxel is (∂cost / ∂m) ∇m. A body adds
// its force to the array (3, X, Y, Z) and its cost to that of the voxel; sums over voxels are taken apart.
#pragma once

#include "place.hpp"
#include "shared/costs.hpp"

namespace regweave::gpu {

// Weight of a voxel: a map, times a factor of the channel, (G, 1, 1, 1) or (G, X, Y, Z), over their number.
struct Weighing {
    const float* map;
    const float* factor;  // null: 1
    int each;             // 1: the factor has a value for each voxel
    float share;

    REGWEAVE_BODY float at(int v) const {
        if (!factor) return share == 1.0f ? map[v] : map[v] * share;
        return map[v] * (factor[each ? v : 0] * share);
    }
};

REGWEAVE_BODY void add_force(const float* m, float slope, const Extent& grid, int v, float* force) {
    float g[3];
    gradient(m, grid, v, g);
    for (int a = 0; a < 3; ++a) force[a * grid.volume() + v] += slope * g[a];
}

// w · mean over channels of √(d² + ε²) − ε
struct Absolute {
    const float* fixed;
    const float* moved;
    float* force;
    float* cost;
    Weighing weight;
    Extent grid;
    float epsilon;
    int channels;

    REGWEAVE_BODY void operator()(Index value) const {
        const int v = int(value);
        const float w = weight.at(v), share = 1.0f / channels;
        if (w == 0.0f) return;
        float sum = 0.0f, total[3] = {0.0f, 0.0f, 0.0f};
        for (int c = 0; c < channels; ++c) {
            const Index at = c * grid.volume();
            const float d = moved[at + v] - fixed[at + v], root = sqrtf(d * d + epsilon * epsilon);
            float g[3];
            gradient(moved + at, grid, v, g);
            const float slope = share * w * d / root;
            for (int a = 0; a < 3; ++a) total[a] += slope * g[a];
            sum += root - epsilon;
        }
        for (int a = 0; a < 3; ++a) force[a * grid.volume() + v] += total[a];
        cost[v] += w * sum * share;
    }
};
REGWEAVE_KERNEL(Absolute)

// w · ½ |ff' − mm'|²
struct Tensor {
    const float* fixed;
    const float* moved;
    float* force;
    float* cost;
    Weighing weight;
    Extent grid;
    int channels;

    REGWEAVE_BODY void operator()(Index value) const {
        const int v = int(value);
        const float w = weight.at(v);
        if (w == 0.0f) return;
        const Index volume = grid.volume();
        float total[3] = {0.0f, 0.0f, 0.0f};
        OuterProducts<float> products;
        for (int c = 0; c < channels; ++c) products.add(fixed[c * volume + v], moved[c * volume + v]);
        cost[v] += w * products.difference();
        for (int c = 0; c < channels; ++c) {
            float g[3];
            gradient(moved + c * volume, grid, v, g);
            const float slope =
                2 * w * (products.bb * moved[c * volume + v] - products.dot * fixed[c * volume + v]);
            for (int a = 0; a < 3; ++a) total[a] += slope * g[a];
        }
        for (int a = 0; a < 3; ++a) force[a * volume + v] += total[a];
    }
};
REGWEAVE_KERNEL(Tensor)

// ½ Σ of squared forward differences times a factor of component and axis, with free ends, an edge counting
// the mean stiffness of its two ends; writes strength × its derivative by u, and its cost.
struct Diffusion {
    const float* u;
    const float* stiffness;  // null: 1 everywhere
    float* force;
    float* cost;
    Extent grid;
    float factor[9];
    float strength;

    REGWEAVE_BODY void operator()(Index value) const {
        const int v = int(value);
        int x[3];
        place_of(grid, v, x);
        const int stride[3] = {plane_of(grid), grid.n[2], 1};
        float sum = 0.0f;
        for (int c = 0; c < 3; ++c) {
            const float* p = u + c * grid.volume() + v;
            float f = 0.0f;
            for (int a = 0; a < 3; ++a) {
                const int up = x[a] + 1 < grid.n[a] ? stride[a] : 0, down = x[a] > 0 ? stride[a] : 0;
                const float forward = p[up] - p[0], back = p[-down] - p[0];
                float su = 1.0f, sd = 1.0f;
                if (stiffness) {
                    su = 0.5f * (stiffness[v + up] + stiffness[v]);
                    sd = 0.5f * (stiffness[v - down] + stiffness[v]);
                }
                f -= factor[3 * c + a] * (su * forward + sd * back);
                sum += factor[3 * c + a] * su * forward * forward;
            }
            force[c * grid.volume() + v] = strength * f;
        }
        cost[v] = 0.5f * sum;
    }
};
REGWEAVE_KERNEL(Diffusion)

struct AddInto {
    const float* from;
    float* to;

    REGWEAVE_BODY void operator()(Index i) const { to[i] += from[i]; }
};
REGWEAVE_KERNEL(AddInto)

// |force|² of each voxel in float64, and its square: two rows.
struct ForceSquares {
    const float* force;
    double* out;
    int n;

    REGWEAVE_BODY void operator()(Index value) const {
        const int v = int(value);
        double s = 0.0;
        for (int a = 0; a < 3; ++a) {
            const double f = force[Index(a) * n + v];
            s += f * f;
        }
        out[v] = s;
        out[Index(n) + v] = s * s;
    }
};
REGWEAVE_KERNEL(ForceSquares)

}  // namespace regweave::gpu
