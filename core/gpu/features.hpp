// Kernels that make the features that metrics compare, (C, X, Y, Z), from an image (X, Y, Z).
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// Central differences, one-sided at the border.
REGWEAVE_BODY void slopes_at(const float* image, const Extent& g, Index v, float* slope) {
    int at[3];
    g.place(v, at[0], at[1], at[2]);
    const Index stride[3] = {Index(g.n[1]) * g.n[2], g.n[2], 1};
    for (int a = 0; a < 3; ++a) {
        const int below = at[a] > 0, above = at[a] + 1 < g.n[a];
        const float d = image[v + above * stride[a]] - image[v - below * stride[a]];
        slope[a] = below + above == 2 ? d / 2.0f : d;
    }
}

struct GradientMagnitude {
    const float* image;
    Extent grid;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        float s[3];
        slopes_at(image, grid, v, s);
        out[v] = sqrtf(s[0] * s[0] + s[1] * s[1] + s[2] * s[2]);
    }
};
REGWEAVE_KERNEL(GradientMagnitude)

// ∇I / √(|∇I|² + ε²), ε a multiple of the mean magnitude, whose sum is given.
struct NormalisedGradient {
    const float* image;
    Extent grid;
    float edge;
    const double* sum;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        float s[3];
        slopes_at(image, grid, v, s);
        const float epsilon = edge * float(*sum / double(grid.volume())) + 1e-6f;
        const float length = sqrtf(s[0] * s[0] + s[1] * s[1] + s[2] * s[2] + epsilon * epsilon);
        for (int a = 0; a < 3; ++a) out[a * grid.volume() + v] = s[a] / length;
    }
};
REGWEAVE_KERNEL(NormalisedGradient)

}  // namespace regweave::gpu
