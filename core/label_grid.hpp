// The energy of an inference problem: nodes on a 6-connected grid, labels on a grid of offsets, and the L1
// distance of the positions of two neighbours, which is a sum over axes and so lets messages pass axis by
// axis.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace regweave {

// A run of edges (p, p + stride) with consecutive p: edges along an axis come in such blocks.
struct EdgeBlocks {
    int count, length, pitch;
};

class GridEnergy {
  public:
    GridEnergy(std::array<int, 3> shape_, std::array<std::vector<double>, 3> offsets_, double weight_,
               const double* unary_, const double* base_)
        : shape(shape_), offsets(std::move(offsets_)), weight(weight_), unary(unary_), base(base_) {
        stride = {shape[1] * shape[2], shape[2], 1};
        n_nodes = shape[0] * shape[1] * shape[2];
        for (int axis = 0; axis < 3; ++axis) k[axis] = static_cast<int>(offsets[axis].size());
        n_labels = k[0] * k[1] * k[2];
        for (int axis = 0; axis < 3; ++axis) {
            fluid[axis].resize(k[axis] * k[axis]);
            fill_table(axis, 0.0, fluid[axis].data());
            sorted = sorted && std::is_sorted(offsets[axis].begin(), offsets[axis].end());
            for (int a = 0; a + 1 < k[axis]; ++a) steps[axis].push_back(fluid[axis][a * k[axis] + a + 1]);
        }
        for (int l = 0; l < n_labels; ++l)
            label_index.push_back({l / (k[1] * k[2]), l / k[2] % k[1], l % k[2]});
        for (int p = 0; p < n_nodes; ++p)
            node_index.push_back({p / stride[0], p / stride[1] % shape[1], p % shape[2]});
        diameter = measure_diameter();
    }

    std::array<int, 3> shape, stride{}, k{};
    int n_nodes = 0, n_labels = 0;
    std::array<std::vector<double>, 3> offsets;
    double weight;
    const double* unary;
    const double* base;   // null in the fluid case
    double diameter = 0;  // largest pairwise cost of any edge
    std::vector<std::array<int, 3>> label_index, node_index;
    bool sorted = true;                        // offsets ascend along each axis
    std::array<std::vector<double>, 3> steps;  // weighted distances of neighbouring offsets

    const double* unary_of(int p) const { return unary + static_cast<std::size_t>(p) * n_labels; }

    EdgeBlocks edges(int axis) const {
        const int pitch = shape[axis] * stride[axis];
        return {n_nodes / pitch, (shape[axis] - 1) * stride[axis], pitch};
    }

    int coordinate(int p, int axis) const { return node_index[p][axis]; }

    // Cost along one axis of the edge from p (row a) to q (column b); `scratch` holds it in the elastic case.
    const double* table(int p, int q, int axis, double* scratch) const {
        if (!base) return fluid[axis].data();
        fill_table(axis, base[3 * p + axis] - base[3 * q + axis], scratch);
        return scratch;
    }

    // Cost along one axis between label index a of p and b of q.
    double axis_cost(int p, int q, int axis, int a, int b) const {
        if (!base) return fluid[axis][a * k[axis] + b];
        const double shift = base[3 * p + axis] - base[3 * q + axis];
        return weight * std::fabs(offsets[axis][a] - offsets[axis][b] + shift);
    }

    double pairwise(int p, int q, int lp, int lq) const {
        const auto &a = label_index[lp], &b = label_index[lq];
        return axis_cost(p, q, 0, a[0], b[0]) + axis_cost(p, q, 1, a[1], b[1]) +
               axis_cost(p, q, 2, a[2], b[2]);
    }

    double operator()(const std::vector<int>& x) const {
        double sum = 0;
        for (int p = 0; p < n_nodes; ++p) sum += unary_of(p)[x[p]];
        for (int axis = 0; axis < 3; ++axis)
            for_each_edge(axis, [&](int p, int q) { sum += pairwise(p, q, x[p], x[q]); });
        return sum;
    }

    template <typename Visit>
    void for_each_edge(int axis, Visit&& visit) const {
        const EdgeBlocks blocks = edges(axis);
        for (int i = 0; i < blocks.count; ++i)
            for (int j = 0; j < blocks.length; ++j) {
                const int p = i * blocks.pitch + j;
                visit(p, p + stride[axis]);
            }
    }

  private:
    std::array<std::vector<double>, 3> fluid;

    void fill_table(int axis, double shift, double* t) const {
        const double* o = offsets[axis].data();
        for (int a = 0; a < k[axis]; ++a)
            for (int b = 0; b < k[axis]; ++b) t[a * k[axis] + b] = weight * std::fabs(o[a] - o[b] + shift);
    }

    double measure_diameter() const {
        double sum = 0;
        for (int axis = 0; axis < 3; ++axis) {
            const auto [low, high] = std::minmax_element(offsets[axis].begin(), offsets[axis].end());
            double shift = 0;
            if (base)
                for (int e = 0; e < 3; ++e)
                    for_each_edge(e, [&](int p, int q) {
                        shift = std::max(shift, std::fabs(base[3 * p + axis] - base[3 * q + axis]));
                    });
            sum += weight * (*high - *low + shift);
        }
        return sum;
    }
};

// Smallest of n values. Eight running minima, because a single one would keep the loop from being vectorised.
inline double minimum(const double* v, int n) {
    if (n < 8) return *std::min_element(v, v + n);
    double m[8];
    for (int j = 0; j < 8; ++j) m[j] = v[j];
    int i = 8;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) m[j] = v[i + j] < m[j] ? v[i + j] : m[j];
    for (; i < n; ++i) m[0] = v[i] < m[0] ? v[i] : m[0];
    return *std::min_element(m, m + 8);
}

// Largest absolute value of n, in the same way.
inline double largest_magnitude(const double* v, int n) {
    double m[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) m[j] = std::fabs(v[i + j]) > m[j] ? std::fabs(v[i + j]) : m[j];
    for (; i < n; ++i) m[0] = std::max(m[0], std::fabs(v[i]));
    return *std::max_element(m, m + 8);
}

// First index of the smallest of n values: ties go to the lower label.
inline int first_minimum(const double* v, int n) {
    const double m = minimum(v, n);
    int i = 0;
    while (i < n - 1 && v[i] != m) ++i;
    return i;
}

}  // namespace regweave
