// Sums and extremes by fixed trees: the same order on every run and every device.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

constexpr int kStrands = 65536;  // partial results of a row of values
constexpr int kTree = 1024;      // leaves of the tree that joins them

// Strand t of a row adds its values t, t + kStrands, … in float64: (rows, n) to (rows, kStrands).
template <class T>
struct StrandSums {
    const T* values;
    Index n;
    double* out;

    REGWEAVE_BODY void operator()(Index i) const {
        const Index row = i / kStrands;
        double sum = 0.0;
        for (Index k = i % kStrands; k < n; k += kStrands) sum += double(values[row * n + k]);
        out[i] = sum;
    }
};
using FloatSums = StrandSums<float>;
using DoubleSums = StrandSums<double>;
REGWEAVE_KERNEL(FloatSums)
REGWEAVE_KERNEL(DoubleSums)

// Sums of short rows (rows, n): a leaf adds the values t, t + kTree, …; then the upper half of the leaves is
// added to the lower, and so on.
struct RowTree {
    const double* values;
    Index n;
    double* out;

    REGWEAVE_BODY double leaf(Index row, int t) const {
        double sum = 0.0;
        for (Index k = t; k < n; k += kTree) sum += values[row * n + k];
        return sum;
    }

#if !defined(__CUDACC__)
    void operator()(Index row) const {
        double leaves[kTree];
        for (int t = 0; t < kTree; ++t) leaves[t] = leaf(row, t);
        for (int half = kTree / 2; half > 0; half /= 2)
            for (int t = 0; t < half; ++t) leaves[t] += leaves[t + half];
        out[row] = leaves[0];
    }
#endif
};

#if defined(__CUDACC__)
// A block for each row.
extern "C" __global__ void __launch_bounds__(kTree) regweave_RowTree(const RowTree a) {
    __shared__ double leaves[kTree];
    const int t = threadIdx.x;
    leaves[t] = a.leaf(blockIdx.x, t);
    for (int half = kTree / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) leaves[t] += leaves[t + half];
    }
    if (t == 0) a.out[blockIdx.x] = leaves[0];
}
#endif

// The same for the smallest value.
struct StrandLeast {
    const float* values;
    Index n;
    float* out;

    REGWEAVE_BODY void operator()(Index t) const {
        float found = values[t < n ? t : 0];
        for (Index k = t; k < n; k += kStrands) found = values[k] < found ? values[k] : found;
        out[t] = found;
    }
};
REGWEAVE_KERNEL(StrandLeast)

struct TreeLeast {
    const float* strands;
    float* out;

    REGWEAVE_BODY float leaf(int t) const {
        float found = strands[t];
        for (int k = t; k < kStrands; k += kTree) found = strands[k] < found ? strands[k] : found;
        return found;
    }

    REGWEAVE_BODY void operator()(Index t) const { out[t] = leaf(int(t)); }
};
REGWEAVE_KERNEL(TreeLeast)

}  // namespace regweave::gpu
