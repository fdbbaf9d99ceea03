// The primal-dual method PD3a for a pairwise term that is a metric on labels (the fluid case).
// Komodakis, Tziritas and Paragios (2007), "Fast, approximately optimal solutions for single and dynamic
// MRFs", CVPR; (2008), "Performance vs computational efficiency for optimizing single and dynamic MRFs", CVIU
// 112(1).
//
// For an edge (p, q) and a label l the balance y_pq(l) = -y_qp(l) moves cost between the two nodes: heights
// are h_p(l) = unary_p(l) + Σ_q y_pq(l), and V(a, b) - y_pq(a) + y_pq(b) is what stays on the edge. The
// labelling x always has a tight edge, V(x_p, x_q) = y_pq(x_p) - y_pq(x_q), so its energy is Σ_p h_p(x_p).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "grid_maxflow.hpp"
#include "label_grid.hpp"
#include "memory.hpp"
#include "trws.hpp"

namespace regweave {

class FastPd {
  public:
    // Starts from a labelling and from duals: y_pq(l) = the message that came back from q to p. Such messages
    // differ between two labels by at most their distance, so no edge starts below zero, and the heights they
    // leave are near zero where a label is good: the flows that are left to find are small.
    FastPd(const GridEnergy& energy, std::vector<int> labels, Trws& messages)
        : e_(energy),
          n_(energy.n_nodes),
          flow_(energy.shape),
          x_(std::move(labels)),
          height_(static_cast<std::size_t>(n_) * e_.n_labels),
          balance_(3 * height_.size()),
          held_(n_),
          distance_(n_),
          movable_(n_),
          wish_(n_),
          change_(n_),
          back_(n_),
          from_(e_.n_labels) {
        for (auto* edge : {&held_p_, &held_q_, &forth_})
            for (auto& v : *edge) v.resize(n_);
        start(messages);
    }

    const std::vector<int>& labels() const { return x_; }

    // Passes over the labels until none of them changes anything; returns the sweeps made, the last one
    // included.
    int run(int max_sweeps) {
        int idle = 0;
        for (int sweep = 1; sweep <= max_sweeps; ++sweep)
            for (int c = 0; c < e_.n_labels; ++c) {
                idle = expand(c) ? 0 : idle + 1;
                if (idle == e_.n_labels) return sweep;
            }
        return max_sweeps;
    }

  private:
    static constexpr double kRounding = 1e-13;  // relative: smaller differences are rounding, not capacity

    const GridEnergy& e_;
    int n_;
    GridMaxflow flow_;
    std::vector<int> x_;
    Buffer<double> height_, balance_;                     // (L, N) and (L, 3, N): one state for each label
    std::vector<double> held_;                            // h_p(x_p)
    std::array<std::vector<double>, 3> held_p_, held_q_;  // y_pq(x_p), y_pq(x_q)
    std::array<std::vector<double>, 3> forth_;            // capacity of p -> q before the flow
    std::vector<double> distance_, movable_, wish_, change_, back_, from_;

    double* heights(int label) { return height_.data() + static_cast<std::size_t>(label) * n_; }
    double* balances(int label, int axis) {
        return balance_.data() + (static_cast<std::size_t>(label) * 3 + axis) * n_;
    }
    const double* balances(int label, int axis) const {
        return balance_.data() + (static_cast<std::size_t>(label) * 3 + axis) * n_;
    }

    // Some labels at a time: messages hold the labels of a node side by side, heights the nodes of a label.
    void start(Trws& messages) {
        constexpr int kTile = 8;
        std::fill_n(balance_.data(), balance_.size(), 0.0);
        for (int first = 0; first < e_.n_labels; first += kTile) {
            const int last = std::min(first + kTile, e_.n_labels);
            for (int p = 0; p < n_; ++p)
                for (int l = first; l < last; ++l) heights(l)[p] = e_.unary_of(p)[l];
            for (int axis = 0; axis < 3; ++axis)
                e_.for_each_edge(axis, [&](int p, int q) {
                    const double* message = messages.message(axis, p);
                    for (int l = first; l < last; ++l) shift(axis, p, q, l, message[l]);
                    const int a = x_[p], b = x_[q];
                    if (a == b) return;
                    const double loose = e_.pairwise(p, q, a, b) - message[a] + message[b];
                    if (a >= first && a < last) shift(axis, p, q, a, 0.5 * loose);
                    if (b >= first && b < last) shift(axis, p, q, b, -0.5 * loose);
                });
        }
        for (int axis = 0; axis < 3; ++axis)
            e_.for_each_edge(axis, [&](int p, int q) {
                held_p_[axis][p] = balances(x_[p], axis)[p];
                held_q_[axis][p] = balances(x_[q], axis)[p];
            });
        for (int p = 0; p < n_; ++p) held_[p] = heights(x_[p])[p];
    }

    void shift(int axis, int p, int q, int label, double amount) {
        balances(label, axis)[p] += amount;
        heights(label)[p] += amount;
        heights(label)[q] -= amount;
    }

    // One inner iteration: the best expansion of label c, and balances y(c) that prove it.
    bool expand(int c) {
        for (int l = 0; l < e_.n_labels; ++l) from_[l] = e_.pairwise(0, 0, l, c);
        for (int p = 0; p < n_; ++p) {
            distance_[p] = from_[x_[p]];
            movable_[p] = x_[p] == c ? 0.0 : 1.0;
        }
        for (int axis = 0; axis < 3; ++axis) pre_edit(c, axis);
        if (!set_terminals(c)) return false;
        flow_.solve();
        update_duals(c);
        return update_primals(c);
    }

    // PREEDIT_DUALS: bring y(c) to where neither (x_p, c) nor (c, x_q) costs less than nothing, which the
    // triangle inequality allows; what is left of the two costs are the capacities.
    void pre_edit(int c, int axis) {
        const EdgeBlocks blocks = e_.edges(axis);
        for (int block = 0; block < blocks.count; ++block) {
            const int begin = block * blocks.pitch;
            pre_edit_block(c, axis, begin, blocks.length);
            double* __restrict h = heights(c) + begin;
            const double* __restrict change = change_.data();
            for (int i = 0; i < blocks.length; ++i) h[i] += change[i];
            h += e_.stride[axis];
            for (int i = 0; i < blocks.length; ++i) h[i] -= change[i];
            for (int i = 0; i < blocks.length; ++i) {
                flow_.arc(begin + i, 2 * axis) = forth_[axis][begin + i];
                flow_.arc(begin + i + e_.stride[axis], 2 * axis + 1) = back_[i];
            }
        }
    }

    void pre_edit_block(int c, int axis, int begin, int length) {
        const double least = kRounding * e_.diameter;
        const double* __restrict mp = movable_.data() + begin;
        const double* __restrict mq = mp + e_.stride[axis];
        const double* __restrict dp = distance_.data() + begin;
        const double* __restrict dq = dp + e_.stride[axis];
        const double* __restrict yp = held_p_[axis].data() + begin;
        const double* __restrict yq = held_q_[axis].data() + begin;
        double* __restrict y = balances(c, axis) + begin;
        double* __restrict forth = forth_[axis].data() + begin;
        double* __restrict back = back_.data();
        double* __restrict change = change_.data();
        for (int i = 0; i < length; ++i) {
            const double free = mp[i] * mq[i];
            const double low = yp[i] - dp[i], high = yq[i] + dq[i], old = y[i];
            const double raised = old < low ? low : old;
            const double moved = raised < high ? raised : high;
            const double f = (high - moved) * free, b = (moved - low) * free;
            change[i] = (moved - old) * free;
            y[i] = free > 0 ? moved : old;
            forth[i] = f > least ? f : 0.0;
            back[i] = b > least ? b : 0.0;
        }
    }

    // A node below the height of its own label wants c and gets flow from the source; one above gives to the
    // sink.
    bool set_terminals(int c) {
        const double* h = heights(c);
        bool wanted = false;
        for (int p = 0; p < n_; ++p) {
            const double gain = held_[p] - h[p];
            const double least = kRounding * (std::fabs(held_[p]) + e_.diameter);
            wish_[p] = x_[p] == c || std::fabs(gain) <= least ? 0.0 : gain;
            flow_.terminal(p) = wish_[p];
            wanted |= wish_[p] > 0;
        }
        return wanted;
    }

    void update_duals(int c) {
        double* h = heights(c);
        for (int p = 0; p < n_; ++p) h[p] += wish_[p] - flow_.terminal(p);
        for (int axis = 0; axis < 3; ++axis) {
            double* y = balances(c, axis);
            e_.for_each_edge(axis, [&](int p, int) { y[p] += forth_[axis][p] - flow_.arc(p, 2 * axis); });
        }
    }

    bool update_primals(int c) {
        bool changed = false;
        const double* h = heights(c);
        for (int p = 0; p < n_; ++p) {
            if (!flow_.source_side(p)) continue;
            changed = true;
            x_[p] = c;
            held_[p] = h[p];
            for (int axis = 0; axis < 3; ++axis) {
                const double* y = balances(c, axis);
                held_p_[axis][p] = y[p];
                if (e_.coordinate(p, axis) > 0) held_q_[axis][p - e_.stride[axis]] = y[p - e_.stride[axis]];
            }
        }
        return changed;
    }
};

}  // namespace regweave
