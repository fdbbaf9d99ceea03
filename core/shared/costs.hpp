// Costs of a support, from terms that each voxel adds; w is the moved image and f the fixed one. V is a float
// or a vector of floats.
#pragma once

#include "shared/body.hpp"

namespace regweave {

// A box cost keeps `terms` sums: add(sums, channels, w, f) adds the terms of a voxel with the features w(c),
// f(c), and finish(sums, moments) is the cost of a support.
struct AbsoluteDifference {
    static constexpr int terms = 1;
    double scale;  // 1 / (voxels · channels)

    template <class V, class Channels, class W, class F>
    REGWEAVE_BODY void add(V* sums, Channels channels, W w, F f) const {
        for (int c = 0; c < channels; ++c) sums[0] += absolute(w(c) - f(c));
    }
    REGWEAVE_BODY float finish(const double* sums, const double*) const { return float(sums[0] * scale); }
};

// ½ |aa' − bb'|² = ½ (|a|⁴ + |b|⁴) − ⟨a, b⟩² of two vectors whose components are added one by one.
template <class V>
struct OuterProducts {
    V dot = {}, aa = {}, bb = {};

    REGWEAVE_BODY void add(V a, V b) {
        dot += a * b;
        aa += a * a;
        bb += b * b;
    }
    REGWEAVE_BODY V difference() const { return 0.5f * (aa * aa + bb * bb) - dot * dot; }
};

// Gradient fields agree where they are parallel, whichever way they point.
struct TensorDifference {
    static constexpr int terms = 1;
    double scale;  // 1 / voxels

    template <class V, class Channels, class W, class F>
    REGWEAVE_BODY void add(V* sums, Channels channels, W w, F f) const {
        OuterProducts<V> products;
        for (int c = 0; c < channels; ++c) products.add(w(c), f(c));
        sums[0] += products.difference();
    }
    REGWEAVE_BODY float finish(const double* sums, const double*) const {
        return float(most(0.0, sums[0] * scale));
    }
};

struct Correlation {
    static constexpr int terms = 3;
    double n, floor;  // voxels, least variance
    bool squared;

    template <class V, class Channels, class W, class F>
    REGWEAVE_BODY void add(V* sums, Channels, W w, F f) const {
        const V m = w(0);
        sums[0] += m;
        sums[1] += m * m;
        sums[2] += m * f(0);
    }
    // The moments are mean and variance, floor included, of the fixed image. Float64, because the variance is
    // a small difference of large sums.
    REGWEAVE_BODY float finish(const double* sums, const double* moments) const {
        const double w = sums[0] / n, ww = most(0.0, sums[1] / n - w * w) + floor;
        const double wj = sums[2] / n - w * moments[0];
        if (squared) return float(1.0 - wj * wj / (ww * moments[1]));
        return float(1.0 - (wj + floor) / sqrt(ww * moments[1]));
    }
};

// The bin of an intensity in units of bins, still a float; this order takes NaN to bin 0.
template <int Bins>
REGWEAVE_BODY float cut_to_bins(float v) {
    return least(most(0.0f, v), float(Bins - 1));
}

// Two axes of one level of a Haar transform: sums (s) and differences (d) of four neighbours.
template <class V>
struct HaarSquare {
    V ss, sd, ds, dd;

    REGWEAVE_BODY HaarSquare(V v00, V v01, V v10, V v11) {
        const V s0 = v00 + v10, d0 = v00 - v10, s1 = v01 + v11, d1 = v01 - v11;
        ss = s0 + s1;
        sd = s0 - s1;
        ds = d0 + d1;
        dd = d0 - d1;
    }
};

// Mean absolute coefficient from the sums of both levels, which are not yet scaled to an orthonormal
// transform.
REGWEAVE_BODY float haar_cost(float fine, float coarse, int voxels) {
    return (fine * 0.35355339059327373f + coarse * 0.0625f) / float(voxels);
}

// Cost 1 − ρ, or 1 − ρ², of the correlation round a voxel, and what it adds to the derivatives in the cube.
struct CorrelationSlope {
    float alpha, beta, gamma;  // w/(n √(v_m v_f)), w ρ/(n v_m), α E f − β E m
    float cost;

    // share is 1/n, the others are sums over the cube.
    REGWEAVE_BODY CorrelationSlope(float share, float f, float m, float ff, float mm, float fm, float weight,
                                   float floor, bool squared) {
        const float mf = f * share, mean = m * share;
        const float vf = most(0.0f, ff * share - mf * mf) + floor;
        const float vm = most(0.0f, mm * share - mean * mean) + floor;
        const float root = 1.0f / sqrtf(vf * vm);
        const float cov = fm * share - mf * mean;
        const float rho = (squared ? cov : cov + floor) * root;
        const float slope = weight * (squared ? 2 * rho : 1.0f);
        alpha = slope * share * root;
        beta = slope * share * rho / vm;
        gamma = alpha * mf - beta * mean;
        cost = weight * (1 - (squared ? rho * rho : rho));
    }
};

}  // namespace regweave
