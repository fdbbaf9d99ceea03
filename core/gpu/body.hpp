// What a kernel of the GPU is written in: a plain struct with its arguments, whose operator() computes one
// value of the result. nvcc makes a kernel of it, a thread for each value; g++ makes the twin that tests
// compare, a loop over the values. Both come from the one struct.
#pragma once

#include "shared/body.hpp"

#if defined(__CUDACC__)
// A kernel with one thread for each of n values, named after its struct.
#define REGWEAVE_KERNEL(Body)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) regweave_##Body(const Body body, const long long n) { \
        const long long v = (long long)blockIdx.x * blockDim.x + threadIdx.x;                               \
        if (v < n) body(v);                                                                                 \
    }
#else
#define REGWEAVE_KERNEL(Body)                                   \
    template <>                                                 \
    struct KernelName<Body> {                                   \
        static constexpr const char* value = "regweave_" #Body; \
    };
#endif

namespace regweave::gpu {

template <class Body>
struct KernelName;

// A grid of voxels in C order.
struct Extent {
    int n[3];

    REGWEAVE_BODY Index volume() const { return Index(n[0]) * n[1] * n[2]; }
    REGWEAVE_BODY Index at(int i, int j, int k) const { return (Index(i) * n[1] + j) * n[2] + k; }
    REGWEAVE_BODY void place(Index v, int& i, int& j, int& k) const {
        const int row =
            int(v) / n[2];  // a volume has less than 2^31 voxels; 64-bit division is slow on a GPU
        k = int(v) - row * n[2];
        i = row / n[1];
        j = row - i * n[1];
    }
};

REGWEAVE_BODY int clamped(int i, int n) { return i < 0 ? 0 : (i < n ? i : n - 1); }

}  // namespace regweave::gpu
