// Binary moves solved by one cut: each node keeps its label or takes the proposed one.
#pragma once

#include <algorithm>
#include <vector>

#include "grid_maxflow.hpp"
#include "label_grid.hpp"

namespace regweave {

// Moves for a pairwise term that is no metric on labels (the elastic case). Terms that are not submodular are
// truncated by lowering the cost of staying, as in Rother et al. (2005), "Digital tapestry", CVPR: the
// optimum of the truncated energy is never worse than the start. Axis steps need no truncation where offsets
// are evenly spaced: both ends of an edge move by the same amount and the L1 distance is convex.
class BinaryMoves {
  public:
    BinaryMoves(const GridEnergy& energy, std::vector<int> labels)
        : e_(energy), flow_(energy.shape), x_(std::move(labels)), proposal_(x_), value_(energy(x_)) {}

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

    // Every step of every node along one axis at a time; true where one changed something.
    bool steps() {
        bool changed = false;
        for (int axis = 0; axis < 3; ++axis)
            for (int step = 1 - e_.k[axis]; step < e_.k[axis]; ++step) {
                if (step == 0) continue;
                const int pitch = axis == 0 ? e_.k[1] * e_.k[2] : axis == 1 ? e_.k[2] : 1;
                for (int p = 0; p < e_.n_nodes; ++p) {
                    const int to = e_.label_index[x_[p]][axis] + step;
                    proposal_[p] = to >= 0 && to < e_.k[axis] ? x_[p] + step * pitch : x_[p];
                }
                changed |= fuse();
            }
        return changed;
    }

  private:
    const GridEnergy& e_;
    GridMaxflow flow_;
    std::vector<int> x_, proposal_;
    double value_;

    bool expansions() {
        bool changed = false;
        for (int label = 0; label < e_.n_labels; ++label) {
            std::fill(proposal_.begin(), proposal_.end(), label);
            changed |= fuse();
        }
        return changed;
    }

    bool fuse() {
        for (int p = 0; p < e_.n_nodes; ++p)
            flow_.terminal(p) = e_.unary_of(p)[x_[p]] - e_.unary_of(p)[proposal_[p]];
        for (int axis = 0; axis < 3; ++axis)
            e_.for_each_edge(axis, [&](int p, int q) { add_edge(axis, p, q); });
        bool wanted = false;
        for (int p = 0; p < e_.n_nodes; ++p) {
            if (proposal_[p] == x_[p]) flow_.terminal(p) = 0;
            wanted |= flow_.terminal(p) > 0;
        }
        if (!wanted) return false;
        flow_.solve();
        for (int p = 0; p < e_.n_nodes; ++p)
            if (!flow_.source_side(p)) proposal_[p] = x_[p];
        const double value = e_(proposal_);
        // Rounding alone must not count as progress, or two equal labellings could alternate.
        if (!(value < value_ - 1e-13 * std::fabs(value_))) return false;
        x_ = proposal_;
        value_ = value;
        return true;
    }

    // Kolmogorov and Zabih (2004): a pairwise term as terminal capacities and one arc, the source side
    // moving.
    void add_edge(int axis, int p, int q) {
        double stay = e_.pairwise(p, q, x_[p], x_[q]);
        const double second = e_.pairwise(p, q, x_[p], proposal_[q]);
        const double first = e_.pairwise(p, q, proposal_[p], x_[q]);
        const double both = e_.pairwise(p, q, proposal_[p], proposal_[q]);
        stay = std::min(stay, first + second - both);
        flow_.terminal(p) -= first - stay;
        flow_.terminal(q) -= both - first;
        flow_.arc(p, 2 * axis) = 0;
        flow_.arc(q, 2 * axis + 1) = std::max(0.0, first + second - stay - both);
    }
};

}  // namespace regweave
