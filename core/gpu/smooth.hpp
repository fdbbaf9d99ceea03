// Gaussian smoothing along one axis, edge voxels repeating outside, summed in float64 in SciPy's order.
#pragma once

#include "place.hpp"

namespace regweave::gpu {

struct AxisGaussian {
    const float* in;  // (C, X, Y, Z)
    Extent grid;
    int axis, radius, channels;
    const double* weight;  // (radius + 1,): of the voxel itself, then outwards
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int n = grid.n[axis], stride = stride_of(grid, axis), x = (int(v) / stride) % n;
        for (int c = 0; c < channels; ++c) {
            const float* p = in + c * grid.volume() + v;
            double sum = double(p[0]) * weight[0];
            for (int d = radius; d >= 1; --d)
                sum +=
                    (double(p[-least(d, x) * stride]) + double(p[least(d, n - 1 - x) * stride])) * weight[d];
            out[c * grid.volume() + v] = float(sum);
        }
    }
};
REGWEAVE_KERNEL(AxisGaussian)

// Takes the values of marked voxels from another array (C, n).
struct TakeMarked {
    const float* from;
    const std::uint8_t* mark;
    int channels;
    Index n;
    float* to;

    REGWEAVE_BODY void operator()(Index v) const {
        if (!mark[v]) return;
        for (int c = 0; c < channels; ++c) to[c * n + v] = from[c * n + v];
    }
};
REGWEAVE_KERNEL(TakeMarked)

}  // namespace regweave::gpu
