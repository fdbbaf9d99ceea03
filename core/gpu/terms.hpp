// Kernels that make an energy of costs: class shares, validity, scales, weights.
#pragma once

#include "costs.hpp"

namespace regweave::gpu {

// Mean of values over the support of each node, (N,).
struct SupportMean {
    Patches p;
    const float* values;
    float* out;

    REGWEAVE_BODY void operator()(Index node) const {
        int at[3];
        p.start(node, at);
        double sum = 0;
        for (int x = at[0]; x < at[0] + p.size[0]; ++x)
            for (int y = at[1]; y < at[1] + p.size[1]; ++y)
                for (int z = at[2]; z < at[2] + p.size[2]; ++z) sum += values[p.grid.at(x, y, z)];
        out[node] = float(sum / p.voxels());
    }
};
REGWEAVE_KERNEL(SupportMean)

// Share of each class in the support of each node, (N, C), or, displaced, of each label of it, (N, L, C).
struct ClassShares {
    Patches p;
    const std::int32_t* numbers;
    int classes;
    bool displaced;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int c = int(v % classes), L = displaced ? p.n_labels() : 1;
        const Index row = v / classes, node = row / L;
        const std::int32_t* n = numbers;
        int at[3];
        p.start(node, at);
        double sum = 0;
        if (displaced) {
            const Shifted shifted(p, int(row - node * L));
            for (int z = at[2]; z < at[2] + p.size[2]; ++z) {
                float sheet = 0;
                for (int x = at[0]; x < at[0] + p.size[0]; ++x)
                    for (int y = at[1]; y < at[1] + p.size[1]; ++y)
                        sheet += shifted.at(x, y, z, [n, c](Index i) { return n[i] == c ? 1.0f : 0.0f; });
                sum += sheet;
            }
        } else {
            int count = 0;
            for (int x = at[0]; x < at[0] + p.size[0]; ++x)
                for (int y = at[1]; y < at[1] + p.size[1]; ++y)
                    for (int z = at[2]; z < at[2] + p.size[2]; ++z) count += n[p.grid.at(x, y, z)] == c;
            sum = count;
        }
        out[v] = float(sum / p.voxels());
    }
};
REGWEAVE_KERNEL(ClassShares)

// Columns of W that a row of shares uses: 0 the class with the most voxels; 1 its largest structure where
// there is enough foreground, else the background; 2 each with its share.
struct ClassRule {
    float* shares;
    int classes, rule;
    float foreground;

    REGWEAVE_BODY void operator()(Index row) const {
        float* s = shares + row * classes;
        if (rule == 2) {
            float sum = 0;
            for (int c = 0; c < classes; ++c) sum += s[c];
            sum = sum > 1e-6f ? sum : 1e-6f;
            for (int c = 0; c < classes; ++c) s[c] /= sum;
            return;
        }
        float first = s[0];
        if (rule == 1) {
            float others = 0;
            for (int c = 1; c < classes; ++c) others += s[c];
            first = others >= foreground ? -1.0f : 2.0f;
        }
        int winner = 0;
        float most = first;
        for (int c = 1; c < classes; ++c)
            if (s[c] > most) {
                most = s[c];
                winner = c;
            }
        for (int c = 0; c < classes; ++c) s[c] = c == winner ? 1.0f : 0.0f;
    }
};
REGWEAVE_KERNEL(ClassRule)

// Standard deviation over the labels of the cost of each member at each node, (M, N).
struct LabelSpread {
    const float* costs;
    int labels;
    const float* valid;  // factor of each node; null where none
    Index nodes;
    double* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const float* c = costs + v * labels;
        const float factor = valid ? valid[v % nodes] : 1.0f;
        double sum = 0, squares = 0;
        for (int l = 0; l < labels; ++l) sum += c[l] * factor;
        const double mean = sum / labels;
        for (int l = 0; l < labels; ++l) {
            const double d = double(c[l] * factor) - mean;
            squares += d * d;
        }
        out[v] = sqrt(squares / labels);
    }
};
REGWEAVE_KERNEL(LabelSpread)

constexpr int kSpreadParts = 128;

struct LargestSpread {
    const double* spread;
    Index nodes;
    double* out;  // (M, parts)

    REGWEAVE_BODY void operator()(Index v) const {
        const double* s = spread + v / kSpreadParts * nodes;
        double most = 0;
        for (Index n = v % kSpreadParts; n < nodes; n += kSpreadParts) most = s[n] > most ? s[n] : most;
        out[v] = most;
    }
};
REGWEAVE_KERNEL(LargestSpread)

// Squares of the spreads that are not quiet, and how many they are.
struct SeenSquares {
    const double* spread;
    Index nodes;
    const double* largest;
    double quiet;
    double* out;  // (M, parts, 2)

    REGWEAVE_BODY void operator()(Index v) const {
        const Index m = v / kSpreadParts;
        double most = 0;
        for (int i = 0; i < kSpreadParts; ++i) {
            const double l = largest[m * kSpreadParts + i];
            most = l > most ? l : most;
        }
        double squares = 0, seen = 0;
        for (Index n = v % kSpreadParts; n < nodes; n += kSpreadParts) {
            const double s = spread[m * nodes + n];
            if (s > quiet * most) {
                squares += s * s;
                seen += 1;
            }
        }
        out[2 * v] = squares;
        out[2 * v + 1] = seen;
    }
};
REGWEAVE_KERNEL(SeenSquares)

struct MemberScale {
    const double* parts;
    double* out;

    REGWEAVE_BODY void operator()(Index m) const {
        double squares = 0, seen = 0;
        for (int i = 0; i < kSpreadParts; ++i) {
            squares += parts[2 * (m * kSpreadParts + i)];
            seen += parts[2 * (m * kSpreadParts + i) + 1];
        }
        const double scale = sqrt(squares / (seen > 1 ? seen : 1));
        out[m] = scale > 1e-9 ? scale : 1e-9;
    }
};
REGWEAVE_KERNEL(MemberScale)

// Costs over the scales of their members; nodes that see too little of the moving image cost nothing.
struct ScaledCosts {
    float* costs;
    Index nodes;
    int labels;
    const double* scales;
    const float* valid;
    bool masked;
    float least;

    REGWEAVE_BODY void operator()(Index v) const {
        const Index row = v / labels, node = row % nodes;
        const float seen = valid[node];
        float c = costs[v];
        if (masked) c *= seen;
        c *= float(1.0 / scales[row / nodes]);
        costs[v] = seen < least ? 0.0f : c;
    }
};
REGWEAVE_KERNEL(ScaledCosts)

// w(c) · U of eq. (1) and the tie-break, (N, L).
struct Unary {
    const float* costs;
    const float* shares;
    const double* matrix;  // (M, C)
    const double* length;  // (L,)
    int members, classes, labels;
    bool displaced;
    Index nodes;
    double tie_break;
    double* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const Index node = v / labels;
        const float* s = shares + (displaced ? v : node) * classes;
        double sum = 0;
        for (int m = 0; m < members; ++m) {
            double w = 0;
            for (int c = 0; c < classes; ++c) w += double(s[c]) * matrix[m * classes + c];
            sum += w * double(costs[m * nodes * labels + v]);
        }
        out[v] = sum + tie_break * length[v - node * labels];
    }
};
REGWEAVE_KERNEL(Unary)

// Displacement of the control points that took these labels, (3, N).
struct LabelVectors {
    const std::int32_t* labels;
    const double* offsets;  // along each axis, one after the other
    int k[3];
    Index nodes;
    float* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const int axis = int(v / nodes), l = labels[v % nodes];
        const int at = axis == 0   ? l / (k[1] * k[2])
                       : axis == 1 ? k[0] + l / k[2] % k[1]
                                   : k[0] + k[1] + l % k[2];
        out[v] = float(offsets[at]);
    }
};
REGWEAVE_KERNEL(LabelVectors)

}  // namespace regweave::gpu
