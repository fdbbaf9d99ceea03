// Adam on control points, and control points held where a step would fold.
#pragma once

#include "place.hpp"

namespace regweave::gpu {

// Control points that move each voxel along an axis: places of their numbers.
struct Reaches {
    const std::int32_t* start;
    const std::int32_t* column;
    int columns;
};

// The gradient by the control points, unstretched, and its squared length in float64.
struct GradientSquares {
    float* g;  // (3, N), divided in place
    double* squared;
    float stretch[3];
    Index n;

    REGWEAVE_BODY void operator()(Index i) const {
        double s = 0.0;
        for (int a = 0; a < 3; ++a) {
            const float value = g[a * n + i] / stretch[a];
            g[a * n + i] = value;
            s += double(value) * double(value);
        }
        squared[i] = s;
    }
};
REGWEAVE_KERNEL(GradientSquares)

// Moments of the gradient, float32 and float64 as on the host, and the bounded step (Kingma and Ba 2015).
struct AdamStep {
    const float* g;
    const double* squared;
    const double* total;  // Σ squared
    float* first;
    double* second;
    float* update;
    float stretch[3];
    double keep[2];    // β₁, β₂
    double unbias[2];  // 1 − β₁ᵗ, 1 − β₂ᵗ
    double length, reach, quiet;
    Index n;

    REGWEAVE_BODY void operator()(Index i) const {
        const double moment = keep[1] * second[i] + (1.0 - keep[1]) * squared[i];
        second[i] = moment;
        const double divisor = sqrt(moment / unbias[1]) + quiet * sqrt(*total / double(n)) + 1e-12;
        for (int a = 0; a < 3; ++a) {
            const float mean = float(keep[0]) * first[a * n + i] + float(1.0 - keep[0]) * g[a * n + i];
            first[a * n + i] = mean;
            const double d =
                double(float(-length) * (mean / float(unbias[0]))) / divisor / double(stretch[a]);
            update[a * n + i] = float(d < -reach ? -reach : d > reach ? reach : d);
        }
    }
};
REGWEAVE_KERNEL(AdamStep)

// Leaves control points that move a marked voxel where they are.
struct Hold {
    const std::uint8_t* mark;
    Extent grid;
    Reaches rows[3];
    float* update;  // (3, nodes)

    REGWEAVE_BODY void operator()(Index v) const {
        if (!mark[v]) return;
        int x[3];
        place_of(grid, int(v), x);
        const Index ny = rows[1].columns, nz = rows[2].columns, n = rows[0].columns * ny * nz;
        for (int i = rows[0].start[x[0]]; i < rows[0].start[x[0] + 1]; ++i)
            for (int j = rows[1].start[x[1]]; j < rows[1].start[x[1] + 1]; ++j)
                for (int k = rows[2].start[x[2]]; k < rows[2].start[x[2] + 1]; ++k) {
                    const Index node = (rows[0].column[i] * ny + rows[1].column[j]) * nz + rows[2].column[k];
                    update[node] = update[n + node] = update[2 * n + node] = 0.0f;
                }
    }
};
REGWEAVE_KERNEL(Hold)

}  // namespace regweave::gpu
