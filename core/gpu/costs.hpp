// Kernels of cost volumes: the cost of every node and label, a thread for each, as core/cost_volume.cpp has
// them.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// Supports of the nodes and shifts of the labels, along each axis one after the other.
struct Patches {
    Extent grid;
    int nodes[3], size[3], labels[3];
    const std::int32_t* starts;
    const std::int32_t* whole;
    const float* fraction;

    REGWEAVE_BODY int n_labels() const { return labels[0] * labels[1] * labels[2]; }
    REGWEAVE_BODY int voxels() const { return size[0] * size[1] * size[2]; }
    REGWEAVE_BODY Index n_nodes() const { return Index(nodes[0]) * nodes[1] * nodes[2]; }

    REGWEAVE_BODY void start(Index node, int* at) const {
        const int c = int(node % nodes[2]), b = int(node / nodes[2] % nodes[1]),
                  a = int(node / nodes[2] / nodes[1]);
        at[0] = starts[a];
        at[1] = starts[nodes[0] + b];
        at[2] = starts[nodes[0] + nodes[1] + c];
    }
};

// An image shifted by one label.
struct Shifted {
    Extent g;
    int whole[3];
    float fraction[3];

    REGWEAVE_BODY Shifted(const Patches& p, int label) : g(p.grid) {
        const int c = label % p.labels[2], b = label / p.labels[2] % p.labels[1],
                  a = label / p.labels[2] / p.labels[1];
        const int at[3] = {a, p.labels[0] + b, p.labels[0] + p.labels[1] + c};
        for (int axis = 0; axis < 3; ++axis) {
            whole[axis] = p.whole[at[axis]];
            fraction[axis] = p.fraction[at[axis]];
        }
    }

    template <class Read>
    REGWEAVE_BODY float at(int x, int y, int z, const Read& read) const {
        const int x0 = clamped(x + whole[0], g.n[0]), x1 = clamped(x + whole[0] + 1, g.n[0]);
        const int y0 = clamped(y + whole[1], g.n[1]), y1 = clamped(y + whole[1] + 1, g.n[1]);
        const int z0 = clamped(z + whole[2], g.n[2]), z1 = clamped(z + whole[2] + 1, g.n[2]);
        auto along_x = [&](int b, int c) {
            const float low = read(g.at(x0, b, c)), high = read(g.at(x1, b, c));
            return low + fraction[0] * (high - low);
        };
        auto along_y = [&](int c) {
            const float low = along_x(y0, c), high = along_x(y1, c);
            return low + fraction[1] * (high - low);
        };
        const float low = along_y(z0), high = along_y(z1);
        return low + fraction[2] * (high - low);
    }
};

struct AbsoluteDifference {
    static constexpr int terms = 1;

    template <class W, class F>
    REGWEAVE_BODY void add(float* sums, int channels, W w, F f) const {
        for (int c = 0; c < channels; ++c) sums[0] += fabsf(w(c) - f(c));
    }
    REGWEAVE_BODY float finish(const double* sums, double voxels, int channels, const double*) const {
        return float(sums[0] * (1.0 / (voxels * channels)));
    }
};

struct TensorDifference {
    static constexpr int terms = 1;

    template <class W, class F>
    REGWEAVE_BODY void add(float* sums, int channels, W w, F f) const {
        float dot = 0, ww = 0, ff = 0;
        for (int c = 0; c < channels; ++c) {
            const float a = w(c), b = f(c);
            dot += a * b;
            ww += a * a;
            ff += b * b;
        }
        sums[0] += 0.5f * (ww * ww + ff * ff) - dot * dot;
    }
    REGWEAVE_BODY float finish(const double* sums, double voxels, int, const double*) const {
        const double v = sums[0] * (1.0 / voxels);
        return float(v > 0.0 ? v : 0.0);
    }
};

struct CorrelationCost {
    static constexpr int terms = 3;
    double floor;
    bool squared;

    template <class W, class F>
    REGWEAVE_BODY void add(float* sums, int, W w, F f) const {
        const float m = w(0);
        sums[0] += m;
        sums[1] += m * m;
        sums[2] += m * f(0);
    }
    // In float64: the variance is a small difference of large sums.
    REGWEAVE_BODY float finish(const double* sums, double n, int, const double* fixed) const {
        const double w = sums[0] / n, spread = sums[1] / n - w * w;
        const double ww = (spread > 0.0 ? spread : 0.0) + floor, wj = sums[2] / n - w * fixed[0];
        if (squared) return float(1.0 - wj * wj / (ww * fixed[1]));
        return float(1.0 - (wj + floor) / sqrt(ww * fixed[1]));
    }
};

// The sums of a support run along y and x in float32 and along z in float64, as those of the host do.
template <class Term>
struct BoxCost {
    Patches p;
    Term term;
    const float* fixed;
    const float* moved;
    int channels;
    const double*
        moments;  // of the fixed image in each support: mean, variance with the floor; null where none
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int L = p.n_labels();
        const Index node = v / L, volume = p.grid.volume();
        const Shifted shifted(p, int(v - node * L));
        int at[3];
        p.start(node, at);
        double sums[Term::terms] = {};
        for (int z = at[2]; z < at[2] + p.size[2]; ++z) {
            float sheet[Term::terms] = {};
            for (int x = at[0]; x < at[0] + p.size[0]; ++x) {
                float row[Term::terms] = {};
                for (int y = at[1]; y < at[1] + p.size[1]; ++y) {
                    const Index here = p.grid.at(x, y, z);
                    term.add(
                        row, channels,
                        [&](int c) {
                            const float* m = moved + c * volume;
                            return shifted.at(x, y, z, [m](Index i) { return m[i]; });
                        },
                        [&](int c) { return fixed[c * volume + here]; });
                }
                for (int t = 0; t < Term::terms; ++t) sheet[t] += row[t];
            }
            for (int t = 0; t < Term::terms; ++t) sums[t] += sheet[t];
        }
        out[v] = term.finish(sums, p.voxels(), channels, moments ? moments + 2 * node : nullptr);
    }
};
using SadCost = BoxCost<AbsoluteDifference>;
using NgfCost = BoxCost<TensorDifference>;
using NccCost = BoxCost<CorrelationCost>;
REGWEAVE_KERNEL(SadCost)
REGWEAVE_KERNEL(NgfCost)
REGWEAVE_KERNEL(NccCost)

// Mean and variance, with a floor added, of the fixed image in each support.
struct FixedMoments {
    Patches p;
    const float* fixed;
    double floor;
    double* out;

    REGWEAVE_BODY void operator()(Index node) const {
        int at[3];
        p.start(node, at);
        double sum = 0, squares = 0;
        for (int x = at[0]; x < at[0] + p.size[0]; ++x)
            for (int y = at[1]; y < at[1] + p.size[1]; ++y)
                for (int z = at[2]; z < at[2] + p.size[2]; ++z) {
                    const double f = fixed[p.grid.at(x, y, z)];
                    sum += f;
                    squares += f * f;
                }
        const double mean = sum / p.voxels(), spread = squares / p.voxels() - mean * mean;
        out[2 * node] = mean;
        out[2 * node + 1] = (spread > 0.0 ? spread : 0.0) + floor;
    }
};
REGWEAVE_KERNEL(FixedMoments)

// H(J | W) from a joint histogram of Bins × Bins that each thread has to itself.
template <int Bins>
struct EntropyCost {
    Patches p;
    const float* fixed;
    const float* moved;
    const float* n_log_n;
    float* out;

    REGWEAVE_BODY static int bin_of(float v) {
        v *= float(Bins);
        v = v > 0.0f ? v : 0.0f;  // NaN becomes 0
        return int(v < float(Bins - 1) ? v : float(Bins - 1));
    }

    REGWEAVE_BODY void operator()(Index v) const {
        const int L = p.n_labels();
        const Index node = v / L;
        const Shifted shifted(p, int(v - node * L));
        const float* m = moved;
        int at[3];
        p.start(node, at);
        std::uint16_t counts[Bins * Bins] = {};
        for (int x = at[0]; x < at[0] + p.size[0]; ++x)
            for (int y = at[1]; y < at[1] + p.size[1]; ++y)
                for (int z = at[2]; z < at[2] + p.size[2]; ++z) {
                    const int j = bin_of(fixed[p.grid.at(x, y, z)]);
                    const int w = bin_of(shifted.at(x, y, z, [m](Index i) { return m[i]; }));
                    ++counts[j * Bins + w];
                }
        float information = 0;
        for (int w = 0; w < Bins; ++w) {
            float part = 0;
            int of_w = 0;
            for (int j = 0; j < Bins; ++j) {
                part += n_log_n[counts[j * Bins + w]];
                of_w += counts[j * Bins + w];
            }
            information += n_log_n[of_w] - part;
        }
        information /= float(p.voxels());
        out[v] = information > 0.0f ? information : 0.0f;
    }
};
using EntropyCost8 = EntropyCost<8>;
using EntropyCost16 = EntropyCost<16>;
REGWEAVE_KERNEL(EntropyCost8)
REGWEAVE_KERNEL(EntropyCost16)

// Mean absolute coefficient of the two-level Haar transform of the difference, over blocks of 4 × 4 × 4
// voxels. Two neighbours a, b of a band give |a + b| + |a − b| = 2 max(|a|, |b|).
struct HaarCost {
    Patches p;
    const float* fixed;
    const float* moved;
    float* out;

    REGWEAVE_BODY static float larger(float a, float b) {
        a = fabsf(a);
        b = fabsf(b);
        return a > b ? a : b;
    }

    REGWEAVE_BODY void operator()(Index v) const {
        const int L = p.n_labels();
        const Index node = v / L;
        const Shifted shifted(p, int(v - node * L));
        const float* m = moved;
        int at[3];
        p.start(node, at);
        auto difference = [&](int x, int y, int z) {
            return shifted.at(x, y, z, [m](Index i) { return m[i]; }) - fixed[p.grid.at(x, y, z)];
        };
        float fine = 0, coarse = 0;
        for (int x = at[0]; x < at[0] + p.size[0]; x += 4)
            for (int y = at[1]; y < at[1] + p.size[1]; y += 4)
                for (int z = at[2]; z < at[2] + p.size[2]; z += 4) {
                    float low[2][2][2];
                    for (int i = 0; i < 2; ++i)
                        for (int j = 0; j < 2; ++j)
                            for (int k = 0; k < 2; ++k) {
                                float ss[2], sd[2], ds[2], dd[2];
                                for (int e = 0; e < 2; ++e) {
                                    const int c = z + 2 * k + e;
                                    const float v00 = difference(x + 2 * i, y + 2 * j, c);
                                    const float v01 = difference(x + 2 * i, y + 2 * j + 1, c);
                                    const float v10 = difference(x + 2 * i + 1, y + 2 * j, c);
                                    const float v11 = difference(x + 2 * i + 1, y + 2 * j + 1, c);
                                    const float s0 = v00 + v10, d0 = v00 - v10, s1 = v01 + v11,
                                                d1 = v01 - v11;
                                    ss[e] = s0 + s1;
                                    sd[e] = s0 - s1;
                                    ds[e] = d0 + d1;
                                    dd[e] = d0 - d1;
                                }
                                fine += 2.0f *
                                        (larger(sd[0], sd[1]) + larger(ds[0], ds[1]) + larger(dd[0], dd[1]));
                                fine += fabsf(ss[0] - ss[1]);
                                low[i][j][k] = ss[0] + ss[1];
                            }
                    float bands[4][2];
                    for (int k = 0; k < 2; ++k) {
                        const float s0 = low[0][0][k] + low[1][0][k], d0 = low[0][0][k] - low[1][0][k];
                        const float s1 = low[0][1][k] + low[1][1][k], d1 = low[0][1][k] - low[1][1][k];
                        bands[0][k] = s0 + s1;
                        bands[1][k] = s0 - s1;
                        bands[2][k] = d0 + d1;
                        bands[3][k] = d0 - d1;
                    }
                    for (int b = 0; b < 4; ++b) coarse += 4.0f * larger(bands[b][0], bands[b][1]);
                }
        out[v] = (fine * 0.35355339059327373f + coarse * 0.0625f) / float(p.voxels());
    }
};
REGWEAVE_KERNEL(HaarCost)

}  // namespace regweave::gpu
