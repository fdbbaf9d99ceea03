// Sequential tree-reweighted message passing.
// Kolmogorov (2006), "Convergent tree-reweighted message passing for energy minimization", PAMI 28(10),
// section 5: monotonic chains in raster order, and one message kept for each edge, the one that the next pass
// reads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "label_grid.hpp"
#include "memory.hpp"
#include "min_plus.hpp"
#include "parallel.hpp"

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
        : e_(energy), terms_(static_cast<std::size_t>(energy.n_nodes)), done_(energy.shape[0]) {
        const std::size_t n = static_cast<std::size_t>(e_.n_nodes) * e_.n_labels;
        for (auto& m : messages_) {
            m = std::make_unique<Buffer<double>>(n);
            std::fill_n(m->data(), n, 0.0);
        }
        margin_ = rounding_margin();
    }

    // Message on the edge from p to the next node along an axis. Before a forward pass it is read as the
    // message that came back to p, before a backward pass as the one that went from p.
    double* message(int axis, int p) {
        return messages_[axis]->data() + static_cast<std::size_t>(p) * e_.n_labels;
    }

    // One pass over the nodes in raster order or against it; returns a lower bound of the energy. Where
    // `labels` is given, each node takes the label that is best for the nodes labelled before it in this pass
    // and for the messages of the others.
    //
    // A node waits for its neighbours in the rows before and above, and for nothing else: threads take plane
    // after plane, each as many rows behind the one before as it must be, and terms of the bound are added up
    // at the end in the order of the nodes.
    double pass(bool forward, std::vector<int>* labels) {
        const int planes = e_.shape[0], rows = e_.shape[1], columns = e_.shape[2];
        for (auto& d : done_) d.store(0, std::memory_order_relaxed);
        std::atomic<int> next{0};
        const bool large = static_cast<std::size_t>(e_.n_nodes) * e_.n_labels >= kShared;
        parallel_for(large ? std::min(threads(), planes) : 1, [&](int) {
            Scratch scratch(e_);
            for (int i = next++; i < planes; i = next++)
                for (int j = 0; j < rows; ++j) {
                    if (i) wait_for(done_[i - 1], j);
                    for (int k = 0; k < columns; ++k) {
                        const int n = (i * rows + j) * columns + k;
                        visit(forward ? n : e_.n_nodes - 1 - n, forward, labels, scratch);
                    }
                    done_[i].store(j + 1, std::memory_order_release);
                }
        });
        CompensatedSum bound;
        for (int n = 0; n < e_.n_nodes; ++n) {
            const Terms& t = terms_[forward ? n : e_.n_nodes - 1 - n];
            for (int j = 0; j < t.count; ++j) bound.add(t.value[j]);
        }
        return bound.value() - margin_;
    }

  private:
    static constexpr std::size_t kShared = std::size_t(1)
                                           << 15;  // numbers of a message that pay for a thread

    struct Neighbour {
        int node, axis, edge;
    };

    // What a node adds to the bound.
    struct Terms {
        int count;
        double value[4];

        void add(double v) { value[count++] = v; }
    };

    struct Scratch {
        std::array<std::vector<double>, 3> tables, axis_cost;
        std::vector<double> near, all, work;

        explicit Scratch(const GridEnergy& e) : near(e.n_labels), all(e.n_labels), work(e.n_labels) {
            const int largest = std::max({e.k[0], e.k[1], e.k[2]});
            for (auto& t : tables) t.resize(largest * largest);
            for (auto& c : axis_cost) c.resize(largest);
        }
    };

    const GridEnergy& e_;
    std::array<std::unique_ptr<Buffer<double>>, 3> messages_;
    std::vector<Terms> terms_;
    std::vector<std::atomic<int>> done_;  // rows of each plane that this pass has visited
    double margin_;

    // Until more than j rows are done. Another thread has the plane and goes on with it, so the wait is short
    // unless the machine has better things to do.
    static void wait_for(const std::atomic<int>& done, int j) {
        for (int spin = 0; done.load(std::memory_order_acquire) <= j; ++spin)
            if (spin > 200) std::this_thread::yield();
    }

    int neighbours(int s, bool next, std::array<Neighbour, 3>& out) const {
        int n = 0;
        for (int axis = 0; axis < 3; ++axis) {
            const int c = e_.coordinate(s, axis), t = next ? s + e_.stride[axis] : s - e_.stride[axis];
            if (next ? c + 1 < e_.shape[axis] : c > 0) out[n++] = {t, axis, next ? s : t};
        }
        return n;
    }

    void visit(int s, bool forward, std::vector<int>* labels, Scratch& scratch) {
        std::array<Neighbour, 3> later, earlier;
        const int n_later = neighbours(s, forward, later), n_earlier = neighbours(s, !forward, earlier);
        const int L = e_.n_labels;
        double* all = scratch.all.data();

        const double* in[6];
        for (int j = 0; j < n_later; ++j) in[j] = message(later[j].axis, later[j].edge);
        for (int j = 0; j < n_earlier; ++j) in[n_later + j] = message(earlier[j].axis, earlier[j].edge);
        add(e_.unary_of(s), in, labels ? n_later : n_later + n_earlier, all);
        if (labels) {
            (*labels)[s] = round(s, earlier, n_earlier, *labels, scratch);
            add(all, in + n_later, n_earlier, all);
        }

        // γ_s = 1 / (number of chains through s); a chain that goes on from s takes its share along an edge,
        // one that ends here leaves the minimum of its share to the bound.
        const int n_chains = std::max({n_later, n_earlier, 1});
        const double gamma = 1.0 / n_chains;
        Terms& bound = terms_[s];
        bound.count = 0;
        if (n_chains > n_later) bound.add((n_chains - n_later) * gamma * minimum(all, L));
        for (int j = 0; j < n_later; ++j) bound.add(send(s, later[j], gamma, scratch));
    }

    // Adds n messages one after the other, all of them while a value is at hand.
    void add(const double* start, const double* const* in, int n, double* all) const {
        switch (n) {
            case 0:
                return add_messages<0>(start, in, all);
            case 1:
                return add_messages<1>(start, in, all);
            case 2:
                return add_messages<2>(start, in, all);
            case 3:
                return add_messages<3>(start, in, all);
            case 4:
                return add_messages<4>(start, in, all);
            case 5:
                return add_messages<5>(start, in, all);
            default:
                return add_messages<6>(start, in, all);
        }
    }

    template <int N>
    void add_messages(const double* start, const double* const* in, double* all) const {
        std::array<const double*, N + 1> m{};
        std::copy_n(in, N, m.begin());
        const int n = e_.n_labels;
        int l = 0;
        for (; l + 4 <= n; l += 4) {  // read whole before written: the compiler need not ask what overlaps
            double sum[4];
            for (int v = 0; v < 4; ++v) sum[v] = start[l + v];
            for (int j = 0; j < N; ++j)
                for (int v = 0; v < 4; ++v) sum[v] += m[j][l + v];
            for (int v = 0; v < 4; ++v) all[l + v] = sum[v];
        }
        for (; l < n; ++l) {
            double sum = start[l];
            for (int j = 0; j < N; ++j) sum += m[j][l];
            all[l] = sum;
        }
    }

    // M_st(b) = min_a (γ θ_s(a) - M_ts(a) + θ_st(a, b)), shifted so that its minimum is 0; returns the shift.
    double send(int s, const Neighbour& t, double gamma, Scratch& scratch) {
        const int L = e_.n_labels;
        const bool metric = !e_.base && e_.sorted;
        double* m = message(t.axis, t.edge);
        const double* __restrict all = scratch.all.data();
        std::array<const double*, 3> cost;
        for (int axis = 0; axis < 3; ++axis)
            cost[axis] =
                metric ? e_.steps[axis].data() : e_.table(s, t.node, axis, scratch.tables[axis].data());
        if (metric) {
            for (int l = 0; l < L; ++l) m[l] = gamma * all[l] - m[l];
            envelope(m, cost, e_.k);
        } else {
            double* __restrict f = scratch.work.data();
            for (int l = 0; l < L; ++l) f[l] = gamma * all[l] - m[l];
            min_plus(f, cost, e_.k, m);
        }
        const double shift = minimum(m, L);
        for (int l = 0; l < L; ++l) m[l] -= shift;
        return shift;
    }

    int round(int s, const std::array<Neighbour, 3>& earlier, int n_earlier, const std::vector<int>& labels,
              Scratch& scratch) const {
        auto& axis_cost = scratch.axis_cost;
        for (int axis = 0; axis < 3; ++axis)
            for (int a = 0; a < e_.k[axis]; ++a) {
                double sum = 0;
                for (int j = 0; j < n_earlier; ++j) {
                    const int u = earlier[j].node;
                    sum += e_.axis_cost(s, u, axis, a, e_.label_index[labels[u]][axis]);
                }
                axis_cost[axis][a] = sum;
            }
        const double* __restrict all = scratch.all.data();
        const double* __restrict last = axis_cost[2].data();
        double* __restrict out = scratch.near.data();
        for (int a = 0, l = 0; a < e_.k[0]; ++a)
            for (int b = 0; b < e_.k[1]; ++b, l += e_.k[2]) {
                const double head = axis_cost[0][a] + axis_cost[1][b];
                for (int c = 0; c < e_.k[2]; ++c) out[l + c] = all[l + c] + (head + last[c]);
            }
        return first_minimum(out, e_.n_labels);
    }

    // Messages stay below the diameter, so each of the few additions behind a term of the bound errs by at
    // most a rounding unit of (largest unary + 6 diameters); 50 units for each node cover them all.
    double rounding_margin() const {
        double scale = 0;
        for (int p = 0; p < e_.n_nodes; ++p)
            scale += largest_magnitude(e_.unary_of(p), e_.n_labels) + 6 * e_.diameter;
        return 50 * std::numeric_limits<double>::epsilon() * scale;
    }
};

}  // namespace regweave
