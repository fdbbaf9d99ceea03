// Kernels that make the features that metrics compare, (C, X, Y, Z), from an image (X, Y, Z).
#pragma once

#include "place.hpp"

namespace regweave::gpu {

struct GradientMagnitude {
    const float* image;
    Extent grid;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        float s[3];
        gradient(image, grid, int(v), s);
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
        gradient(image, grid, int(v), s);
        const float epsilon = edge * float(*sum / double(grid.volume())) + 1e-6f;
        const float length = sqrtf(s[0] * s[0] + s[1] * s[1] + s[2] * s[2] + epsilon * epsilon);
        for (int a = 0; a < 3; ++a) out[a * grid.volume() + v] = s[a] / length;
    }
};
REGWEAVE_KERNEL(NormalisedGradient)

}  // namespace regweave::gpu
