// Self-similarity context (MIND-SSC): distances between pairs of neighbouring patches of each voxel.
#pragma once

#include "correlation.hpp"

namespace regweave::gpu {

// Squared difference of the image at both offsets of each pair, edge voxels repeating outside: (C, X, Y, Z).
struct PairSquares {
    const float* image;
    Extent grid;
    const std::int32_t* pairs;  // (C, 2, 3)
    int channels;
    float* out;

    REGWEAVE_BODY float at(const int* x, const std::int32_t* by) const {
        return image[grid.at(clamped(x[0] + by[0], grid.n[0]), clamped(x[1] + by[1], grid.n[1]),
                             clamped(x[2] + by[2], grid.n[2]))];
    }

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(grid, int(v), x);
        for (int c = 0; c < channels; ++c) {
            const float d = at(x, pairs + 6 * c) - at(x, pairs + 6 * c + 3);
            out[c * grid.volume() + v] = d * d;
        }
    }
};
REGWEAVE_KERNEL(PairSquares)

// Mean distances above the smallest of a voxel, in place, and their mean, its variance.
struct PatchVariance {
    float* distances;  // (C, X, Y, Z): sums over the patch
    Extent grid;
    int channels, radius;
    float* variance;

    REGWEAVE_BODY void operator()(Index v) const {
        int x[3];
        place_of(grid, int(v), x);
        float* d = distances + v;
        float smallest = d[0], sum = 0.0f;
        for (int c = 1; c < channels; ++c) {
            const float there = d[c * grid.volume()];
            smallest = there < smallest ? there : smallest;
        }
        const float scale = 1.0f / count_inside(grid, radius, x);
        for (int c = 0; c < channels; ++c) {
            const float value = (d[c * grid.volume()] - smallest) * scale;
            d[c * grid.volume()] = value;
            sum += value;
        }
        variance[v] = sum / float(channels);
    }
};
REGWEAVE_KERNEL(PatchVariance)

// exp(−distance / variance), in place, the variance kept between low and high times its mean over the image.
struct PatchSimilarity {
    float* distances;
    const float* variance;
    const double* total;  // Σ variance
    Index n;
    int channels;
    float low, high;

    REGWEAVE_BODY void operator()(Index v) const {
        const double typical = *total / double(n) + 1e-9;
        const float least_variance = float(low * typical), most_variance = float(high * typical);
        float noise = variance[v] > least_variance ? variance[v] : least_variance;
        noise = noise < most_variance ? noise : most_variance;
        for (int c = 0; c < channels; ++c) distances[c * n + v] = expf(-distances[c * n + v] / noise);
    }
};
REGWEAVE_KERNEL(PatchSimilarity)

}  // namespace regweave::gpu
