// Sums and extremes by fixed trees: the same order on every run and every device.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

constexpr int kStrands = 16384;  // partial results of a row of values
constexpr int kBundle = 128;     // of which a thread of the next stage adds so many; its square is kStrands

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

struct BundleSums {
    const double* values;
    double* out;

    REGWEAVE_BODY void operator()(Index i) const {
        double sum = 0.0;
        for (int k = 0; k < kBundle; ++k) sum += values[i * kBundle + k];
        out[i] = sum;
    }
};
REGWEAVE_KERNEL(BundleSums)

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

struct BundleLeast {
    const float* values;
    float* out;

    REGWEAVE_BODY void operator()(Index i) const {
        float found = values[i * kBundle];
        for (int k = 1; k < kBundle; ++k) {
            const float v = values[i * kBundle + k];
            found = v < found ? v : found;
        }
        out[i] = found;
    }
};
REGWEAVE_KERNEL(BundleLeast)

}  // namespace regweave::gpu
