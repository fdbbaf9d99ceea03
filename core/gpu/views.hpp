// Kernels that make views of an image: window, map of intensities, mean of blocks, Gaussian.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// Intensities mapped to [0, 1], then through a broken line where there is one, then the mean of each block of
// voxels, added up in the order of core/intensity.cpp; the last block along an axis repeats the edge voxel.
struct BlockMean {
    const float* image;
    Extent from, to;
    int factors[3];
    float low, scale;
    bool windowed;
    const double* knots;  // ascending; null without a map
    const double* values;
    int n_knots;
    float* out;

    REGWEAVE_BODY float mapped(float raw) const {
        if (!windowed) return raw;
        float x = (raw - low) * scale;
        x = x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
        if (!knots) return x;
        if (x <= knots[0]) return float(values[0]);
        if (x >= knots[n_knots - 1]) return float(values[n_knots - 1]);
        int below = 0, above = n_knots - 1;
        while (above - below > 1) {
            const int middle = (below + above) / 2;
            if (knots[middle] <= x)
                below = middle;
            else
                above = middle;
        }
        const double slope = (values[above] - values[below]) / (knots[above] - knots[below]);
        return float(slope * (x - knots[below]) + values[below]);
    }

    REGWEAVE_BODY void operator()(Index v) const {
        int i, j, k;
        to.place(v, i, j, k);
        float sum = 0.0f;
        for (int c = 0; c < factors[2]; ++c) {
            float sheet = 0.0f;
            for (int a = 0; a < factors[0]; ++a)
                for (int b = 0; b < factors[1]; ++b)
                    sheet += mapped(image[from.at(clamped(i * factors[0] + a, from.n[0]),
                                                  clamped(j * factors[1] + b, from.n[1]),
                                                  clamped(k * factors[2] + c, from.n[2]))]);
            sum += sheet;
        }
        out[v] = sum * (1.0f / (float(factors[0]) * float(factors[1]) * float(factors[2])));
    }
};
REGWEAVE_KERNEL(BlockMean)

}  // namespace regweave::gpu
