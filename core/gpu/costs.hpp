// Kernels of cost volumes: the cost of every node and label, a thread for each, as core/cost_volume.cpp has
// them.
#pragma once

#include "body.hpp"
#include "shared/costs.hpp"

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
            return between(read(g.at(x0, b, c)), read(g.at(x1, b, c)), fraction[0]);
        };
        auto along_y = [&](int c) { return between(along_x(y0, c), along_x(y1, c), fraction[1]); };
        return between(along_y(z0), along_y(z1), fraction[2]);
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
        out[v] = term.finish(sums, moments ? moments + 2 * node : nullptr);
    }
};
using SadCost = BoxCost<AbsoluteDifference>;
using NgfCost = BoxCost<TensorDifference>;
using NccCost = BoxCost<Correlation>;
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
        const double mean = sum / p.voxels();
        out[2 * node] = mean;
        out[2 * node + 1] = most(0.0, squares / p.voxels() - mean * mean) + floor;
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

    REGWEAVE_BODY static int bin_of(float v) { return int(cut_to_bins<Bins>(v * float(Bins))); }

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
        out[v] = most(0.0f, information / float(p.voxels()));
    }
};
using EntropyCost8 = EntropyCost<8>;
using EntropyCost16 = EntropyCost<16>;
REGWEAVE_KERNEL(EntropyCost8)
REGWEAVE_KERNEL(EntropyCost16)

// Level 1 of the Haar transform of a cube of 2 × 2 × 2 voxels, whose differences are d(x, y, z). Two
// neighbours a, b of a band give |a + b| + |a − b| = 2 max(|a|, |b|).
struct HaarCube {
    float doubled, single, low;  // sums of the bands; what is left for level 2

    REGWEAVE_BODY static float larger(float a, float b) { return most(absolute(a), absolute(b)); }

    template <class D>
    REGWEAVE_BODY explicit HaarCube(D d) {
        const HaarSquare<float> a(d(0, 0, 0), d(0, 1, 0), d(1, 0, 0), d(1, 1, 0));
        const HaarSquare<float> b(d(0, 0, 1), d(0, 1, 1), d(1, 0, 1), d(1, 1, 1));
        doubled = 2.0f * (larger(a.sd, b.sd) + larger(a.ds, b.ds) + larger(a.dd, b.dd));
        single = absolute(a.ss - b.ss);
        low = a.ss + b.ss;
    }

    // Adds the bands of level 2, of the eight cubes low(x, y, z).
    template <class Low>
    REGWEAVE_BODY static void add_coarse(float& coarse, Low low) {
        const HaarSquare<float> a(low(0, 0, 0), low(0, 1, 0), low(1, 0, 0), low(1, 1, 0));
        const HaarSquare<float> b(low(0, 0, 1), low(0, 1, 1), low(1, 0, 1), low(1, 1, 1));
        coarse += 4.0f * larger(a.ss, b.ss);
        coarse += 4.0f * larger(a.sd, b.sd);
        coarse += 4.0f * larger(a.ds, b.ds);
        coarse += 4.0f * larger(a.dd, b.dd);
    }
};

// Mean absolute coefficient of the two-level Haar transform of the difference, over blocks of 4 × 4 × 4
// voxels.
struct HaarCost {
    Patches p;
    const float* fixed;
    const float* moved;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int L = p.n_labels();
        const Index node = v / L;
        const Shifted shifted(p, int(v - node * L));
        const float* m = moved;
        int at[3];
        p.start(node, at);
        float fine = 0, coarse = 0;
        for (int x = at[0]; x < at[0] + p.size[0]; x += 4)
            for (int y = at[1]; y < at[1] + p.size[1]; y += 4)
                for (int z = at[2]; z < at[2] + p.size[2]; z += 4) {
                    float low[2][2][2];
                    for (int i = 0; i < 2; ++i)
                        for (int j = 0; j < 2; ++j)
                            for (int k = 0; k < 2; ++k) {
                                const HaarCube cube([&](int a, int b, int c) {
                                    const int X = x + 2 * i + a, Y = y + 2 * j + b, Z = z + 2 * k + c;
                                    return shifted.at(X, Y, Z, [m](Index q) { return m[q]; }) -
                                           fixed[p.grid.at(X, Y, Z)];
                                });
                                fine += cube.doubled;
                                fine += cube.single;
                                low[i][j][k] = cube.low;
                            }
                    HaarCube::add_coarse(coarse, [&](int i, int j, int k) { return low[i][j][k]; });
                }
        out[v] = haar_cost(fine, coarse, p.voxels());
    }
};
REGWEAVE_KERNEL(HaarCost)

}  // namespace regweave::gpu
