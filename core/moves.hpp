// Binary moves solved by one cut: each node keeps its label or takes the proposed one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "grid_maxflow.hpp"
#include "label_grid.hpp"

namespace regweave {

// Moves for a pairwise term that is no metric on labels (the elastic case). Terms that are not submodular are
// truncated by lowering the cost of staying, as in Rother et al. (2005), "Digital tapestry", CVPR: the
// optimum of the truncated energy is never worse than the start. Axis steps need no truncation where offsets
// are evenly spaced: both ends of an edge move by the same amount and the L1 distance is convex.
//
// Only few nodes can gain by a move once message passing has been there. A node that would not gain if all
// its neighbours moved, the best that can happen to it in a submodular energy, stays in the smallest minimum
// cut; its neighbours are then asked again. The cut is sought among the nodes that are left.
class BinaryMoves {
  public:
    BinaryMoves(const GridEnergy& energy, std::vector<int> labels)
        : e_(energy),
          flow_(energy.shape),
          x_(std::move(labels)),
          proposal_(x_),
          movable_(energy.n_nodes),
          value_(energy(x_)) {}

    const std::vector<int>& labels() const { return x_; }

    // Sweeps over all steps along an axis and all expansions until nothing changes; returns the sweeps made.
    int run(int max_sweeps) {
        for (int sweep = 1; sweep <= max_sweeps; ++sweep) {
            const bool stepped = steps();
            const bool expanded = expansions();
            if (!stepped && !expanded) return sweep;
        }
        return max_sweeps;
    }

    // Every step of every node along one axis at a time, until the energy is as low as is wanted; true where
    // one changed something.
    bool steps(double wanted = -std::numeric_limits<double>::infinity()) {
        bool changed = false;
        for (int axis = 0; axis < 3; ++axis)
            for (int step = 1 - e_.k[axis]; step < e_.k[axis]; ++step) {
                if (step == 0 || !take_step(axis, step)) continue;
                changed = true;
                if (value_ <= wanted) return true;
            }
        return changed;
    }

    // Every label offered to all nodes, one at a time; true where one changed something.
    bool expansions() {
        bool changed = false;
        std::vector<double> way(e_.n_labels);
        for (int label = 0; label < e_.n_labels; ++label) {
            for (int l = 0; l < e_.n_labels; ++l) way[l] = distance(l, label);
            for (int p = 0; p < e_.n_nodes; ++p) offer(p, label, way[x_[p]]);
            changed |= fuse([&](int p, int q, int lp, int lq) { return e_.pairwise(p, q, lp, lq); });
        }
        return changed;
    }

  private:
    struct Edge {
        double stay, own, other, both;  // costs where neither node moves, this one, its neighbour, both
    };

    const GridEnergy& e_;
    GridMaxflow flow_;
    std::vector<int> x_, proposal_;
    std::vector<int> candidates_;        // nodes that may still gain
    std::vector<std::uint8_t> movable_;  // is a node one of them?
    double value_;

    // The costs along the other two axes are those of before and cancel.
    bool take_step(int axis, int step) {
        const int pitch = axis == 0 ? e_.k[1] * e_.k[2] : axis == 1 ? e_.k[2] : 1;
        const std::vector<double>& offset = e_.offsets[axis];
        for (int p = 0; p < e_.n_nodes; ++p) {
            const int at = e_.label_index[x_[p]][axis], to = at + step;
            if (to >= 0 && to < e_.k[axis])
                offer(p, x_[p] + step * pitch, std::fabs(offset[to] - offset[at]));
            else
                proposal_[p] = x_[p];
        }
        return fuse([&](int p, int q, int lp, int lq) {
            return e_.axis_cost(p, q, axis, e_.label_index[lp][axis], e_.label_index[lq][axis]);
        });
    }

    double distance(int a, int b) const {
        double sum = 0;
        for (int axis = 0; axis < 3; ++axis)
            sum += std::fabs(e_.offsets[axis][e_.label_index[a][axis]] -
                             e_.offsets[axis][e_.label_index[b][axis]]);
        return sum;
    }

    // No edge saves a node more than the way it goes: a first look, without the neighbours.
    void offer(int p, int label, double way) {
        constexpr double kMostEdges = 6 + 1e-9;  // rounding keeps no node out
        proposal_[p] = label;
        const double* unary = e_.unary_of(p);
        if (label == x_[p] || !(unary[x_[p]] - unary[label] + kMostEdges * e_.weight * way > 0)) return;
        movable_[p] = 1;
        candidates_.push_back(p);
    }

    // Visits the neighbours of p as (direction of grid_maxflow.hpp, node).
    template <typename Visit>
    void for_each_neighbour(int p, Visit&& visit) const {
        for (int axis = 0; axis < 3; ++axis) {
            const int c = e_.coordinate(p, axis);
            if (c + 1 < e_.shape[axis]) visit(2 * axis, p + e_.stride[axis]);
            if (c > 0) visit(2 * axis + 1, p - e_.stride[axis]);
        }
    }

    template <typename Cost>
    Edge edge(int p, int q, const Cost& cost) const {
        Edge e{cost(p, q, x_[p], x_[q]), cost(p, q, proposal_[p], x_[q]), cost(p, q, x_[p], proposal_[q]),
               cost(p, q, proposal_[p], proposal_[q])};
        e.stay = std::min(e.stay, e.own + e.other - e.both);
        return e;
    }

    template <typename Cost>
    bool fuse(const Cost& cost) {
        while (drop_settled(cost)) {
        }
        const bool changed = cut(cost) && accept(cost);
        for (int p : candidates_) {
            movable_[p] = 0;
            flow_.clear(p);
        }
        candidates_.clear();
        return changed;
    }

    // Takes nodes that cannot gain from the candidates; true where that may have settled many others.
    template <typename Cost>
    bool drop_settled(const Cost& cost) {
        const std::size_t before = candidates_.size();
        std::size_t left = 0;
        for (int p : candidates_) {
            double gain = e_.unary_of(p)[x_[p]] - e_.unary_of(p)[proposal_[p]];
            for_each_neighbour(p, [&](int, int q) {
                const Edge e = edge(p, q, cost);
                gain -= movable_[q] ? e.both - e.other : e.own - e.stay;
            });
            if (gain > 0)
                candidates_[left++] = p;
            else
                movable_[p] = 0;
        }
        candidates_.resize(left);
        return left > 0 && 8 * (before - left) > before;
    }

    // Kolmogorov and Zabih (2004): pairwise terms as terminal capacities and one arc each, from the upper
    // node to the lower one, the source side moving. False where no node wants to move.
    template <typename Cost>
    bool cut(const Cost& cost) {
        bool wanted = false;
        for (int p : candidates_) {
            double terminal = e_.unary_of(p)[x_[p]] - e_.unary_of(p)[proposal_[p]];
            for_each_neighbour(p, [&](int direction, int q) {
                const Edge e = edge(p, q, cost);
                const bool lower = direction % 2 == 0;
                terminal -= lower || !movable_[q] ? e.own - e.stay : e.both - e.other;
                if (!lower && movable_[q])
                    flow_.arc(p, direction) = std::max(0.0, e.own + e.other - e.stay - e.both);
            });
            flow_.terminal(p) = terminal;
            wanted |= terminal > 0;
        }
        if (wanted) flow_.solve(candidates_);
        return wanted;
    }

    // Moves the nodes on the source side; what they gain is counted on their own edges.
    template <typename Cost>
    bool accept(const Cost& cost) {
        double change = 0;
        for (int p : candidates_) {
            if (!flow_.source_side(p)) continue;
            change += e_.unary_of(p)[proposal_[p]] - e_.unary_of(p)[x_[p]];
            for_each_neighbour(p, [&](int direction, int q) {
                const bool together = movable_[q] && flow_.source_side(q);
                if (together && direction % 2 == 1) return;
                change +=
                    cost(p, q, proposal_[p], together ? proposal_[q] : x_[q]) - cost(p, q, x_[p], x_[q]);
            });
        }
        // Rounding alone must not count as progress, or two equal labellings could alternate.
        if (!(change < -1e-13 * std::fabs(value_))) return false;
        for (int p : candidates_)
            if (flow_.source_side(p)) x_[p] = proposal_[p];
        value_ += change;
        return true;
    }
};

}  // namespace regweave
