// Engines that minimise a pairwise energy on the grid of nodes; the classes carry the algorithms.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "fastpd.hpp"
#include "grid_maxflow.hpp"
#include "icm.hpp"
#include "label_grid.hpp"
#include "moves.hpp"
#include "trws.hpp"

namespace regweave {
namespace {

using Shape = std::array<int, 3>;
using Solved = std::tuple<Out<int>, double, int>;  // labels, lower bound, iterations

std::vector<double> to_vector(const In<double, 1>& a) { return {a.data(), a.data() + a.shape(0)}; }

struct Arguments {
    In<double, 2> unary;
    Shape shape;
    In<double, 1> x, y, z;
    double weight;
    std::optional<In<double, 2>> base;
    In<int, 1> init;

    GridEnergy energy() const {
        return GridEnergy(shape, {to_vector(x), to_vector(y), to_vector(z)}, weight, unary.data(),
                          base ? base->data() : nullptr);
    }
    std::vector<int> labels() const { return {init.data(), init.data() + init.shape(0)}; }
};

struct Result {
    std::vector<int> labels;
    double bound = -std::numeric_limits<double>::infinity();
    int iterations = 0;
};

// The cut moves that suit the pairwise term.
std::vector<int> polished(const GridEnergy& energy, const std::vector<int>& labels) {
    if (energy.base) {
        BinaryMoves moves(energy, labels);
        moves.run(1);
        return moves.labels();
    }
    FastPd expansion(energy, labels);
    expansion.run(1);
    return expansion.labels();
}

class Best {
  public:
    Best(const GridEnergy& energy, std::vector<int> labels)
        : energy_(energy), labels_(std::move(labels)), value_(energy(labels_)) {}
    bool offer(const std::vector<int>& labels) {
        const double value = energy_(labels);
        if (!(value < value_)) return false;
        labels_ = labels;
        value_ = value;
        return true;
    }
    const std::vector<int>& labels() const { return labels_; }
    double value() const { return value_; }

  private:
    const GridEnergy& energy_;
    std::vector<int> labels_;
    double value_;
};

Result run_trws(const GridEnergy& energy, const std::vector<int>& init, int max_iter, double tol) {
    constexpr int kPatience = 5;
    Trws trws(energy);
    Best best(energy, init);
    Result r;
    std::vector<int> labels = init;
    std::vector<double> history;
    while (r.iterations < max_iter) {
        ++r.iterations;
        for (bool forward : {true, false}) {
            r.bound = std::max(r.bound, trws.pass(forward, &labels));
            best.offer(labels);
        }
        history.push_back(r.bound);
        const double allowed = tol * std::max(std::fabs(best.value()), 1e-12);
        if (best.value() - r.bound <= allowed) break;
        const std::size_t n = history.size();
        if (n > kPatience && history[n - 1] - history[n - 1 - kPatience] < 0.1 * allowed) break;
    }
    best.offer(polished(energy, best.labels()));
    r.labels = best.labels();
    return r;
}

// Tree-reweighted passes from the balances: the bound can only rise above what the balances prove themselves.
double certify(const GridEnergy& energy, const FastPd* duals, int passes) {
    Trws trws(energy);
    if (duals)
        for (int axis = 0; axis < 3; ++axis)
            energy.for_each_edge(axis, [&](int p, int) {
                double* m = trws.message(axis, p);
                for (int l = 0; l < energy.n_labels; ++l) m[l] = duals->balance(axis, p, l);
            });
    double bound = -std::numeric_limits<double>::infinity();
    for (int i = 0; i < passes; ++i) bound = std::max(bound, trws.pass(i % 2 == 0, nullptr));
    return bound;
}

Result run_fastpd(const GridEnergy& energy, const std::vector<int>& init, int max_iter, int bound_passes) {
    Result r;
    if (energy.base) {
        BinaryMoves moves(energy, init);
        r.iterations = moves.run(max_iter);
        r.labels = moves.labels();
        r.bound = certify(energy, nullptr, bound_passes);
    } else {
        FastPd solver(energy, init);
        r.iterations = solver.run(max_iter);
        r.labels = solver.labels();
        r.bound = certify(energy, &solver, bound_passes);
    }
    return r;
}

Result run_icm(const GridEnergy& energy, const std::vector<int>& init, int max_iter) {
    Result r;
    r.labels = init;
    std::vector<double> cost(energy.n_labels);
    bool changed = true;
    while (changed && r.iterations < max_iter) {
        ++r.iterations;
        changed = icm_sweep(energy, r.labels, cost);
    }
    return r;
}

template <typename Run>
Solved solve(const Arguments& args, Run&& run) {
    Result r;
    {
        nb::gil_scoped_release release;
        r = run(args.energy(), args.labels());
    }
    NewArray<int, 1> labels({r.labels.size()});
    std::copy(r.labels.begin(), r.labels.end(), labels.data.get());
    return {labels.release(), r.bound, r.iterations};
}

Solved trws(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z, double weight,
            std::optional<In<double, 2>> base, In<int, 1> init, int max_iter, double tol) {
    return solve({unary, shape, x, y, z, weight, base, init},
                 [&](const GridEnergy& e, const auto& start) { return run_trws(e, start, max_iter, tol); });
}

Solved fastpd(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z, double weight,
              std::optional<In<double, 2>> base, In<int, 1> init, int max_iter, int bound_passes) {
    return solve({unary, shape, x, y, z, weight, base, init}, [&](const GridEnergy& e, const auto& start) {
        return run_fastpd(e, start, max_iter, bound_passes);
    });
}

Solved icm(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z, double weight,
           std::optional<In<double, 2>> base, In<int, 1> init, int max_iter) {
    return solve({unary, shape, x, y, z, weight, base, init},
                 [&](const GridEnergy& e, const auto& start) { return run_icm(e, start, max_iter); });
}

std::tuple<double, Out<bool>> grid_maxflow(In<double, 1> terminals, In<double, 2> arcs, Shape shape) {
    GridMaxflow flow(shape);
    const std::size_t n = terminals.shape(0);
    for (std::size_t p = 0; p < n; ++p) {
        flow.terminal(static_cast<int>(p)) = terminals(p);
        for (int d = 0; d < 6; ++d) flow.arc(static_cast<int>(p), d) = arcs(p, d);
    }
    const double value = flow.solve();
    NewArray<bool, 1> side({n});
    for (std::size_t p = 0; p < n; ++p) side.data[p] = flow.source_side(static_cast<int>(p));
    return {value, side.release()};
}

Out<double> min_plus_message(In<double, 3> f, In<double, 2> x, In<double, 2> y, In<double, 2> z) {
    NewArray<double, 3> out({f.shape(0), f.shape(1), f.shape(2)});
    std::vector<double> work(f.data(), f.data() + f.size());
    const Shape k = {static_cast<int>(f.shape(0)), static_cast<int>(f.shape(1)), static_cast<int>(f.shape(2))};
    min_plus(work.data(), {x.data(), y.data(), z.data()}, k, out.data.get());
    return out.release();
}

}  // namespace
}  // namespace regweave

void register_inference(regweave::nb::module_& m) {
    using namespace regweave;
    using namespace nb::literals;
    m.def("trws", &trws, "unary"_a, "shape"_a, "x"_a, "y"_a, "z"_a, "weight"_a, "base"_a.none(), "init"_a,
          "max_iter"_a, "tol"_a, "Tree-reweighted message passing: labels (N,), lower bound, iterations.");
    m.def("fastpd", &fastpd, "unary"_a, "shape"_a, "x"_a, "y"_a, "z"_a, "weight"_a, "base"_a.none(), "init"_a,
          "max_iter"_a, "bound_passes"_a, "Primal-dual expansion: labels (N,), lower bound, iterations.");
    m.def("icm", &icm, "unary"_a, "shape"_a, "x"_a, "y"_a, "z"_a, "weight"_a, "base"_a.none(), "init"_a,
          "max_iter"_a, "Coordinate descent: labels (N,), minus infinity, iterations.");
    m.def("grid_maxflow", &grid_maxflow, "terminals"_a, "arcs"_a, "shape"_a,
          "Value of a maximum flow and the nodes (N,) on the source's side; arcs (N, 6) go +x -x +y -y +z -z, "
          "terminals (N,) are positive from the source and negative to the sink.");
    m.def("min_plus", &min_plus_message, "f"_a, "x"_a, "y"_a, "z"_a,
          "min over a of f(a) + x(a0, b0) + y(a1, b1) + z(a2, b2), same shape as f.");
}
