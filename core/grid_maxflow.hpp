// Maximum flow on a 6-connected grid with two terminals.
// Boykov and Kolmogorov (2004), "An experimental comparison of min-cut/max-flow algorithms for energy
// minimization in vision", PAMI 26(9), section 3: two search trees that are kept between augmentations.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace regweave {

// Directions: 2 * axis towards the next node along the axis, 2 * axis + 1 back; d ^ 1 is the opposite of d.
class GridMaxflow {
  public:
    explicit GridMaxflow(std::array<int, 3> shape)
        : n_(shape[0] * shape[1] * shape[2]),
          // An arc that leaves the grid has no capacity but is looked at: one slab of empty nodes at each
          // end.
          guard_(shape[1] * shape[2]),
          nodes_(n_ + 2 * guard_),
          mark_(n_ + 2 * guard_),
          distance_(n_ + 2 * guard_),
          next_(n_ + 2 * guard_) {
        const std::array<int, 3> stride = {shape[1] * shape[2], shape[2], 1};
        for (int axis = 0; axis < 3; ++axis) {
            step_[2 * axis] = stride[axis];
            step_[2 * axis + 1] = -stride[axis];
        }
    }

    // Capacity left from the source to p where positive, from p to the sink where negative.
    double& terminal(int p) { return nodes_[guard_ + p].terminal; }
    // Capacity left from p in direction d; never set one that leaves the grid.
    double& arc(int p, int d) { return nodes_[guard_ + p].arc[d]; }
    // After solve(): is p reached from the source (the smallest minimum cut)?
    bool source_side(int p) const { return nodes_[guard_ + p].tree == kSource; }

    // Turns capacities into residual capacities of a maximum flow and returns its value.
    double solve() {
        restart();
        for (int p = guard_; p < guard_ + n_; ++p) enter(p);
        return run();
    }
    // The same where only some nodes have capacities; all others must be as at the start, or cleared.
    double solve(const std::vector<int>& nodes) {
        restart();
        for (int p : nodes) enter(guard_ + p);
        return run();
    }
    void clear(int p) { nodes_[guard_ + p] = Node(); }

  private:
    static constexpr std::uint8_t kFree = 0, kSource = 1, kSink = 2;
    static constexpr std::uint8_t kTerminal = 6, kOrphan = 7;  // values of `parent` that are no direction
    static constexpr int kNotActive = -1;

    struct Node {
        std::array<double, 6> arc{};
        double terminal = 0;
        std::uint8_t tree = kFree, parent = kOrphan;
    };

    int n_, guard_;
    std::array<int, 6> step_{};
    std::vector<Node> nodes_;
    std::vector<int> mark_, distance_, next_;  // time of the last proof of origin, distance then, queue
    std::vector<int> orphans_;
    int first_ = -1, last_ = -1, time_ = 0;
    double flow_ = 0;

    void restart() {
        flow_ = 0;
        time_ = 1;
        first_ = last_ = -1;
    }

    // The roots of the trees; those of the source begin to grow.
    void enter(int p) {
        Node& node = nodes_[p];
        mark_[p] = 0;
        next_[p] = kNotActive;
        node.tree = node.terminal > 0 ? kSource : node.terminal < 0 ? kSink : kFree;
        node.parent = node.tree == kFree ? kOrphan : kTerminal;
        distance_[p] = 1;
        if (node.tree == kSource) activate(p);
    }

    double run() {
        int current = -1;
        for (;;) {
            if (current < 0 || nodes_[current].tree == kFree) current = pop_active();
            if (current < 0) return flow_;
            int from, d;
            if (!grow(current, from, d)) {
                current = -1;
                continue;
            }
            ++time_;
            augment(from, d);
            adopt();
        }
    }

    void activate(int p) {
        if (next_[p] != kNotActive) return;
        next_[p] = p;  // the last of the queue points to itself
        if (last_ >= 0)
            next_[last_] = p;
        else
            first_ = p;
        last_ = p;
    }

    int pop_active() {
        while (first_ >= 0) {
            const int p = first_;
            first_ = next_[p] == p ? -1 : next_[p];
            if (first_ < 0) last_ = -1;
            next_[p] = kNotActive;
            if (nodes_[p].tree != kFree) return p;
        }
        return -1;
    }

    // Capacity of the arc over which a neighbour q = p + step d would hang below p in p's tree.
    double tree_arc(std::uint8_t tree, int p, int q, int d) const {
        return tree == kSource ? nodes_[p].arc[d] : nodes_[q].arc[d ^ 1];
    }

    // Growth stage: p takes free neighbours; true where it meets the other tree, over the arc (from, d).
    bool grow(int p, int& from, int& d) {
        const std::uint8_t tree = nodes_[p].tree;
        for (int e = 0; e < 6; ++e) {
            const int q = p + step_[e];
            if (!(tree_arc(tree, p, q, e) > 0)) continue;
            Node& other = nodes_[q];
            if (other.tree == kFree) {
                other.tree = tree;
                hang(q, e ^ 1, mark_[p], distance_[p] + 1);
                activate(q);
            } else if (other.tree != tree) {
                from = tree == kSource ? p : q;
                d = tree == kSource ? e : e ^ 1;
                return true;
            } else if (mark_[q] <= mark_[p] && distance_[q] > distance_[p] + 1) {
                hang(q, e ^ 1, mark_[p], distance_[p] + 1);  // shorter way to the terminal
            }
        }
        return false;
    }

    void hang(int p, int parent, int mark, int distance) {
        nodes_[p].parent = static_cast<std::uint8_t>(parent);
        mark_[p] = mark;
        distance_[p] = distance;
    }

    // Visits each arc between p and the root of its tree, as (child, capacity); returns the root.
    template <typename Visit>
    int climb(int p, Visit&& visit) {
        while (nodes_[p].parent != kTerminal) {
            const int d = nodes_[p].parent, up = p + step_[d];
            if (nodes_[p].tree == kSource)
                visit(p, nodes_[up].arc[d ^ 1], nodes_[p].arc[d]);
            else
                visit(p, nodes_[p].arc[d], nodes_[up].arc[d ^ 1]);
            p = up;
        }
        return p;
    }

    // Augmentation stage along source ... from -> from + step d ... sink.
    void augment(int from, int d) {
        const int to = from + step_[d];
        double push = nodes_[from].arc[d];
        auto narrow = [&](int, double& capacity, double&) { push = capacity < push ? capacity : push; };
        const int source_root = climb(from, narrow), sink_root = climb(to, narrow);
        push = std::min({push, nodes_[source_root].terminal, -nodes_[sink_root].terminal});

        nodes_[from].arc[d] -= push;
        nodes_[to].arc[d ^ 1] += push;
        auto send = [&](int child, double& capacity, double& back) {
            capacity -= push;
            back += push;
            if (!(capacity > 0)) orphans_.push_back(child);
        };
        climb(from, send);
        climb(to, send);
        if (!((nodes_[source_root].terminal -= push) > 0)) orphans_.push_back(source_root);
        if (!((nodes_[sink_root].terminal += push) < 0)) orphans_.push_back(sink_root);
        for (int p : orphans_) nodes_[p].parent = kOrphan;
        flow_ += push;
    }

    // Adoption stage: each orphan finds a parent whose origin is its terminal, or leaves the tree.
    void adopt() {
        for (std::size_t i = 0; i < orphans_.size(); ++i) {
            const int p = orphans_[i];
            const std::uint8_t tree = nodes_[p].tree;
            int best = -1, best_distance = std::numeric_limits<int>::max();
            for (int d = 0; d < 6; ++d) {
                const int q = p + step_[d];
                if (nodes_[q].tree != tree || !(tree_arc(tree, q, p, d ^ 1) > 0)) continue;
                const int distance = origin_distance(q);
                if (distance < best_distance) {
                    best = d;
                    best_distance = distance;
                }
            }
            if (best >= 0)
                hang(p, best, time_, best_distance + 1);
            else
                release(p);
        }
        orphans_.clear();
    }

    // Arcs from q to its terminal, the largest int where q hangs below an orphan. Nodes on the way are
    // marked, so that no proof is made twice between two augmentations.
    int origin_distance(int q) {
        int length = 0, p = q;
        while (mark_[p] != time_) {
            const int parent = nodes_[p].parent;
            if (parent == kOrphan) return std::numeric_limits<int>::max();
            if (parent == kTerminal) {
                mark_[p] = time_;
                distance_[p] = 1;
                break;
            }
            ++length;
            p += step_[parent];
        }
        const int total = length + distance_[p];
        int distance = total;
        for (p = q; mark_[p] != time_; p += step_[nodes_[p].parent]) {
            mark_[p] = time_;
            distance_[p] = distance--;
        }
        return total;
    }

    void release(int p) {
        const std::uint8_t tree = nodes_[p].tree;
        for (int d = 0; d < 6; ++d) {
            const int q = p + step_[d];
            if (nodes_[q].tree != tree) continue;
            if (tree_arc(tree, q, p, d ^ 1) > 0) activate(q);
            if (nodes_[q].parent == (d ^ 1)) {
                nodes_[q].parent = kOrphan;
                orphans_.push_back(q);
            }
        }
        nodes_[p].tree = kFree;
        nodes_[p].parent = kOrphan;
    }
};

}  // namespace regweave
