// Weights of classes laid over voxels: the class of each moved voxel, structures spread into the background.
#pragma once

#include "place.hpp"
#include "sampling.hpp"

namespace regweave::gpu {

// The number of the class that the nearest moving voxel has; `fill` outside the image.
struct WarpNumbers {
    const std::int32_t* labels;
    Extent from;
    Matrix matrix;
    const float* u;
    Extent to;
    const std::int32_t* known;  // labels that have a number, (n,)
    const std::int32_t* number;
    int n, fill;
    std::int32_t* out;

    REGWEAVE_BODY void operator()(Index v) const {
        double p[3];
        position(to, matrix, u, v, p);
        std::int32_t found = fill;
        if (inside(from, p)) {
            const std::int32_t label = Cell(from.n, p).nearest(labels);
            found = 0;
            for (int k = 0; k < n; ++k)
                if (known[k] == label) found = number[k];
        }
        out[v] = found;
    }
};
REGWEAVE_KERNEL(WarpNumbers)

// Background within a reach of a structure takes the number of the nearest voxel of one; of several as near,
// that which comes first along the last axis, then the second, then the first, as SciPy chooses.
struct SpreadNumbers {
    const std::int32_t* numbers;
    Extent grid;
    double voxel[3], reach;
    std::int32_t* out;

    REGWEAVE_BODY void operator()(Index v) const {
        std::int32_t found = numbers[v];
        if (found == 0) {
            int x[3], begin[3], end[3];
            place_of(grid, int(v), x);
            for (int a = 0; a < 3; ++a) {
                const int far = int(reach / voxel[a]);
                begin[a] = most(x[a] - far, 0);
                end[a] = least(x[a] + far, grid.n[a] - 1);
            }
            double nearest = reach * reach * (1.0 + 1e-12);
            bool any = false;
            for (int k = begin[2]; k <= end[2]; ++k)
                for (int j = begin[1]; j <= end[1]; ++j)
                    for (int i = begin[0]; i <= end[0]; ++i) {
                        const std::int32_t there = numbers[grid.at(i, j, k)];
                        if (there == 0) continue;
                        const double d[3] = {(i - x[0]) * voxel[0], (j - x[1]) * voxel[1],
                                             (k - x[2]) * voxel[2]};
                        const double away = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
                        if (any ? away < nearest * (1.0 - 1e-12) : away <= nearest) {
                            nearest = away;
                            found = there;
                            any = true;
                        }
                    }
        }
        out[v] = found;
    }
};
REGWEAVE_KERNEL(SpreadNumbers)

// The value of each voxel's number, times a map and a scale.
struct LayWeights {
    const std::int32_t* numbers;  // null: all 0
    const float* values;
    const float* map;  // null: 1
    float scale;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const float value = values[numbers ? numbers[v] : 0];
        out[v] = map ? value * map[v] * scale : value;
    }
};
REGWEAVE_KERNEL(LayWeights)

}  // namespace regweave::gpu
