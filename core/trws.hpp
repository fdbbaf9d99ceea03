// Sequential tree-reweighted message passing.
// Kolmogorov (2006), "Convergent tree-reweighted message passing for energy minimization", PAMI 28(10),
// section 5: monotonic chains in raster order, and one message kept for each edge, the one that the next pass
// reads.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "label_grid.hpp"
#include "min_plus.hpp"

namespace regweave {

// Running sum with the error of each addition kept (Neumaier): a bound must not lose its last digits.
class CompensatedSum {
  public:
    void add(double v) {
        const double s = sum_ + v;
        error_ += std::fabs(sum_) >= std::fabs(v) ? (sum_ - s) + v : (v - s) + sum_;
        sum_ = s;
    }
    double value() const { return sum_ + error_; }

  private:
    double sum_ = 0, error_ = 0;
};

class Trws {
  public:
    explicit Trws(const GridEnergy& energy)
        : e_(energy), near_(energy.n_labels), all_(energy.n_labels), work_(energy.n_labels) {
        for (auto& m : messages_) m.assign(static_cast<std::size_t>(e_.n_nodes) * e_.n_labels, 0.0);
        int largest = std::max({e_.k[0], e_.k[1], e_.k[2]});
        for (auto& t : tables_) t.resize(largest * largest);
        for (auto& c : axis_cost_) c.resize(largest);
        margin_ = rounding_margin();
    }

    // Message of the edge from p to the next node along an axis. Before a forward pass it is read as the
    // message that came back to p, before a backward pass as the one that went from p.
    double* message(int axis, int p) {
        return messages_[axis].data() + static_cast<std::size_t>(p) * e_.n_labels;
    }

    // One pass over the nodes in raster order or against it; returns a lower bound of the energy. Where
    // `labels` is given, each node takes the label that is best for the nodes labelled before it in this pass
    // and for the messages of the others.
    double pass(bool forward, std::vector<int>* labels) {
        CompensatedSum bound;
        for (int i = 0; i < e_.n_nodes; ++i) {
            const int s = forward ? i : e_.n_nodes - 1 - i;
            visit(s, forward, labels, bound);
        }
        return bound.value() - margin_;
    }

  private:
    struct Neighbour {
        int node, axis, edge;
    };

    const GridEnergy& e_;
    std::array<std::vector<double>, 3> messages_, tables_, axis_cost_;
    std::vector<double> near_, all_, work_;
    double margin_;

    int neighbours(int s, bool next, std::array<Neighbour, 3>& out) const {
        int n = 0;
        for (int axis = 0; axis < 3; ++axis) {
            const int c = e_.coordinate(s, axis), t = next ? s + e_.stride[axis] : s - e_.stride[axis];
            if (next ? c + 1 < e_.shape[axis] : c > 0) out[n++] = {t, axis, next ? s : t};
        }
        return n;
    }

    void visit(int s, bool forward, std::vector<int>* labels, CompensatedSum& bound) {
        std::array<Neighbour, 3> later, earlier;
        const int n_later = neighbours(s, forward, later), n_earlier = neighbours(s, !forward, earlier);
        const int L = e_.n_labels;

        std::copy_n(e_.unary_of(s), L, all_.data());
        for (int j = 0; j < n_later; ++j) add(message(later[j].axis, later[j].edge));
        if (labels) (*labels)[s] = round(s, earlier, n_earlier, *labels);
        for (int j = 0; j < n_earlier; ++j) add(message(earlier[j].axis, earlier[j].edge));

        // γ_s = 1 / (number of chains through s); a chain that goes on from s takes its share along an edge,
        // one that ends here leaves the minimum of its share to the bound.
        const int n_chains = std::max({n_later, n_earlier, 1});
        const double gamma = 1.0 / n_chains;
        if (n_chains > n_later) bound.add((n_chains - n_later) * gamma * minimum(all_.data(), L));
        for (int j = 0; j < n_later; ++j) bound.add(send(s, later[j], gamma));
    }

    void add(const double* __restrict m) {
        double* __restrict a = all_.data();
        for (int l = 0; l < e_.n_labels; ++l) a[l] += m[l];
    }

    // M_st(b) = min_a (γ θ_s(a) - M_ts(a) + θ_st(a, b)), shifted so that its minimum is 0; returns the shift.
    double send(int s, const Neighbour& t, double gamma) {
        const int L = e_.n_labels;
        const bool metric = !e_.base && e_.sorted;
        double* m = message(t.axis, t.edge);
        double* f = metric ? m : work_.data();
        const double* __restrict all = all_.data();
        for (int l = 0; l < L; ++l) f[l] = gamma * all[l] - m[l];
        std::array<const double*, 3> cost;
        for (int axis = 0; axis < 3; ++axis)
            cost[axis] = metric ? e_.steps[axis].data() : e_.table(s, t.node, axis, tables_[axis].data());
        if (metric)
            envelope(m, cost, e_.k);
        else
            min_plus(f, cost, e_.k, m);
        const double shift = minimum(m, L);
        for (int l = 0; l < L; ++l) m[l] -= shift;
        return shift;
    }

    int round(int s, const std::array<Neighbour, 3>& earlier, int n_earlier, const std::vector<int>& labels) {
        for (int axis = 0; axis < 3; ++axis)
            for (int a = 0; a < e_.k[axis]; ++a) {
                double sum = 0;
                for (int j = 0; j < n_earlier; ++j) {
                    const int u = earlier[j].node;
                    sum += e_.axis_cost(s, u, axis, a, e_.label_index[labels[u]][axis]);
                }
                axis_cost_[axis][a] = sum;
            }
        const double* __restrict all = all_.data();
        const double* __restrict last = axis_cost_[2].data();
        double* __restrict out = near_.data();
        for (int a = 0, l = 0; a < e_.k[0]; ++a)
            for (int b = 0; b < e_.k[1]; ++b, l += e_.k[2]) {
                const double head = axis_cost_[0][a] + axis_cost_[1][b];
                for (int c = 0; c < e_.k[2]; ++c) out[l + c] = all[l + c] + (head + last[c]);
            }
        return first_minimum(out, e_.n_labels);
    }

    // Messages stay below the diameter, so each of the few additions behind a term of the bound errs by at
    // most a rounding unit of (largest unary + 6 diameters); 50 units for each node cover them all.
    double rounding_margin() const {
        double scale = 0;
        for (int p = 0; p < e_.n_nodes; ++p) {
            double largest = 0;
            for (int l = 0; l < e_.n_labels; ++l) largest = std::max(largest, std::fabs(e_.unary_of(p)[l]));
            scale += largest + 6 * e_.diameter;
        }
        return 50 * std::numeric_limits<double>::epsilon() * scale;
    }
};

}  // namespace regweave
