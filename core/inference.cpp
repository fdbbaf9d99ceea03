// Engines that minimise a pairwise energy on the grid of nodes; the classes carry the algorithms.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "certify.hpp"
#include "fastpd.hpp"
#include "grid_checks.hpp"
#include "icm.hpp"
#include "label_grid.hpp"
#include "moves.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "trws.hpp"

namespace regweave {
namespace {

using Solved = std::tuple<Out<int>, double, int>;  // labels, lower bound, iterations

struct Arguments {
    In<double, 2> unary;
    Shape shape;
    In<double, 1> x, y, z;
    double weight;
    std::optional<In<double, 2>> base;
    In<int, 1> init;

    // What the engines take for granted: arrays that fit the grid, labels that exist, numbers whose sums are
    // finite, which flows and bounds would otherwise never stop comparing.
    void check() const {
        const std::size_t nodes = require_nodes(shape), labels = require_offsets(x, y, z);
        require(unary.shape(0) == nodes && unary.shape(1) == labels, "unary (N, L) does not fit the grid");
        require(!base || (base->shape(0) == nodes && base->shape(1) == 3),
                "base (N, 3) does not fit the grid");
        require(init.shape(0) == nodes, "init (N,) does not fit the grid");
        for (std::size_t p = 0; p < nodes; ++p)
            require(init(p) >= 0 && std::size_t(init(p)) < labels, "init has a label that does not exist");
        require(std::isfinite(weight) && weight >= 0, "the pairwise weight must be finite and 0 or more");
        double size = largest(unary.data(), unary.size(), "unary must be finite");
        double reach = 0;
        for (const auto* o : {&x, &y, &z})
            reach += 2 * largest(o->data(), o->size(), "offsets must be finite");
        if (base) reach += 6 * largest(base->data(), base->size(), "base must be finite");
        require((size + 6 * weight * reach) * double(nodes) < 1e300,
                "the energy is too large to be added up");
    }

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

class Best {
  public:
    Best(const GridEnergy& energy, std::vector<int> labels)
        : energy_(energy), labels_(std::move(labels)), value_(energy(labels_)) {}
    void offer(const std::vector<int>& labels) {
        const double value = energy_(labels);
        if (!(value < value_)) return;
        labels_ = labels;
        value_ = value;
    }
    const std::vector<int>& labels() const { return labels_; }
    double value() const { return value_; }

  private:
    const GridEnergy& energy_;
    std::vector<int> labels_;
    double value_;
};

// A search as core/certify.hpp wants it.
class MessageSearch {
  public:
    MessageSearch(const GridEnergy& energy, const std::vector<int>& init)
        : energy_(energy), messages_(energy), best_(energy, init), labels_(init) {}

    double value() const { return best_.value(); }
    double bound() const { return bound_; }
    const std::vector<int>& labels() const { return best_.labels(); }

    void iterate() {
        for (bool forward : {true, false}) {
            bound_ = std::max(bound_, messages_.pass(forward, &labels_));
            best_.offer(labels_);
        }
    }
    bool steps(double wanted) {
        return moved([=](BinaryMoves& moves) { return moves.steps(wanted); });
    }
    bool expansions() {
        return moved([](BinaryMoves& moves) { return moves.expansions(); });
    }

  private:
    const GridEnergy& energy_;
    Trws messages_;
    Best best_;
    std::vector<int> labels_;
    double bound_ = -std::numeric_limits<double>::infinity();

    template <typename Move>
    bool moved(Move&& move) {
        BinaryMoves moves(energy_, best_.labels());
        if (!move(moves)) return false;
        best_.offer(moves.labels());
        return true;
    }
};

Result run_trws(const GridEnergy& energy, const std::vector<int>& init, int max_iter, double tol) {
    MessageSearch search(energy, init);
    const int iterations = certify(search, max_iter, tol);
    return {search.labels(), search.bound(), iterations};
}

double lower_bound(const GridEnergy& energy, int passes) {
    Trws trws(energy);
    double bound = -std::numeric_limits<double>::infinity();
    for (int i = 0; i < passes; ++i) bound = std::max(bound, trws.pass(i % 2 == 0, nullptr));
    return bound;
}

constexpr int kStartPasses = 2;  // each way

Result run_fastpd(const GridEnergy& energy, const std::vector<int>& init, int max_iter, int bound_passes) {
    Result r;
    if (energy.base) {
        BinaryMoves moves(energy, init);
        r.iterations = moves.run(max_iter);
        r.labels = moves.labels();
        r.bound = lower_bound(energy, bound_passes);
        return r;
    }
    Trws messages(energy);
    Best start(energy, init);
    std::vector<int> labels(energy.n_nodes);
    for (int i = 0; i < kStartPasses; ++i) {
        messages.pass(true, nullptr);
        r.bound = std::max(r.bound, messages.pass(false, &labels));
        start.offer(labels);
    }
    // The bound needs nothing of what the sweeps find, so it is tightened beside them where there is a second
    // thread; the passes share all threads but the one that is at the sweeps.
    FastPd solver(energy, start.labels(), messages);
    double tightened = r.bound;
    const int all = threads();
    std::atomic<bool> sweeping{true};
    parallel_for(2, [&](int task) {
        if (task == 1) {
            r.iterations = solver.run(max_iter);
            sweeping = false;
            return;
        }
        const int before = threads();
        for (int i = 0; i < bound_passes; ++i) {
            set_threads(std::max(1, sweeping ? all - 1 : all));
            tightened = std::max(tightened, messages.pass(i % 2 == 0, nullptr));
        }
        set_threads(before);
    });
    r.labels = solver.labels();
    r.bound = tightened;
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
        args.check();
        r = run(args.energy(), args.labels());
    }
    NewArray<int, 1> labels({r.labels.size()});
    std::copy(r.labels.begin(), r.labels.end(), labels.data.get());
    return {labels.release(), r.bound, r.iterations};
}

Solved trws(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z,
            double weight, std::optional<In<double, 2>> base, In<int, 1> init, int max_iter, double tol) {
    require(max_iter >= 1 && tol >= 0, "max_iter must be 1 or more, tol 0 or more");
    return solve({unary, shape, x, y, z, weight, base, init},
                 [&](const GridEnergy& e, const auto& start) { return run_trws(e, start, max_iter, tol); });
}

Solved fastpd(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z,
              double weight, std::optional<In<double, 2>> base, In<int, 1> init, int max_iter,
              int bound_passes) {
    require(max_iter >= 1 && bound_passes >= 0, "max_iter must be 1 or more, bound_passes 0 or more");
    return solve({unary, shape, x, y, z, weight, base, init}, [&](const GridEnergy& e, const auto& start) {
        return run_fastpd(e, start, max_iter, bound_passes);
    });
}

Solved icm(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z, double weight,
           std::optional<In<double, 2>> base, In<int, 1> init, int max_iter) {
    require(max_iter >= 1, "max_iter must be 1 or more");
    return solve({unary, shape, x, y, z, weight, base, init},
                 [&](const GridEnergy& e, const auto& start) { return run_icm(e, start, max_iter); });
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
}
