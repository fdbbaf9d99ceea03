// Formulas of one voxel that the kernels of the processor and those of the GPU share. The processor uses them
// in loops over rows, the GPU and its twin in one thread for each value.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define REGWEAVE_BODY __host__ __device__ inline
#else
#define REGWEAVE_BODY inline
#endif

namespace regweave {

using Index = long long;

// As std::min and std::max, which code of a GPU cannot call: the result is a where b is NaN.
template <class T>
REGWEAVE_BODY T least(T a, T b) {
    return b < a ? b : a;
}
template <class T>
REGWEAVE_BODY T most(T a, T b) {
    return a < b ? b : a;
}

REGWEAVE_BODY float absolute(float v) { return fabsf(v); }

// Linear interpolation; V is a float or a vector of floats.
template <class V>
REGWEAVE_BODY V between(V low, V high, float fraction) {
    return low + fraction * (high - low);
}

// The same, exact at both ends.
REGWEAVE_BODY float mix(float low, float high, float fraction) {
    return (1.0f - fraction) * low + fraction * high;
}

// Determinant of the matrix with columns a, b, c.
template <class T>
REGWEAVE_BODY T determinant(const T* a, const T* b, const T* c) {
    return a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) +
           c[0] * (a[1] * b[2] - a[2] * b[1]);
}

// An affine map of voxel positions.
struct Matrix {
    double m[3][4];

    REGWEAVE_BODY void apply(const double* x, double* y) const {
        for (int a = 0; a < 3; ++a) y[a] = m[a][0] * x[0] + m[a][1] * x[1] + m[a][2] * x[2] + m[a][3];
    }
};

}  // namespace regweave
