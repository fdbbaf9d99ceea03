// Energies of a discrete step on a GPU: scales of the members, weights, and their minimisation by TRW-S.
#include <nanobind/stl/optional.h>

#include <limits>
#include <optional>

#include "certify.hpp"
#include "messages.hpp"
#include "moves.hpp"
#include "seam.hpp"
#include "terms.hpp"
#include "totals.hpp"
#include "waves.hpp"

namespace regweave::gpu {
namespace {

struct Volume {
    Index members, nodes;
    int labels;
    float* data;

    explicit Volume(const Array& costs)
        : members(Index(costs.shape().at(0))),
          nodes(Index(costs.shape().at(1))),
          labels(int(costs.shape().at(2))),
          data(costs.data<float>(3)) {}
};

Array fit_scales(const Array& costs, const std::optional<Array>& factor, double quiet) {
    const Volume v(costs);
    Queue& queue = costs.queue();
    Array spread = make<double>(costs, {std::size_t(v.members), std::size_t(v.nodes)});
    Array largest = make<double>(costs, {std::size_t(v.members), kSpreadParts});
    Array seen = make<double>(costs, {std::size_t(v.members), kSpreadParts, 2});
    Array out = make<double>(costs, {std::size_t(v.members)});
    const float* valid = factor ? factor->data<float>(1) : nullptr;
    queue.launch(LabelSpread{v.data, v.labels, valid, v.nodes, spread.data<double>(2)}, v.members * v.nodes);
    queue.launch(LargestSpread{spread.data<double>(2), v.nodes, largest.data<double>(2)},
                 v.members * kSpreadParts);
    queue.launch(
        SeenSquares{spread.data<double>(2), v.nodes, largest.data<double>(2), quiet, seen.data<double>(3)},
        v.members * kSpreadParts);
    queue.launch(MemberScale{seen.data<double>(3), out.data<double>(1)}, v.members);
    return out;
}

void scale_costs(const Array& costs, const Array& scales, const Array& valid, bool masked, double least) {
    const Volume v(costs);
    require(Index(scales.size()) == v.members && Index(valid.size()) == v.nodes,
            "scales or weights do not fit");
    costs.queue().launch(ScaledCosts{v.data, v.nodes, v.labels, scales.data<double>(1), valid.data<float>(1),
                                     masked, float(least)},
                         v.members * v.nodes * v.labels);
}

Array assemble(const Array& costs, const Array& shares, const Array& matrix, const Array& length,
               double tie_break) {
    const Volume v(costs);
    const bool displaced = shares.shape().size() == 3;
    const int classes = int(shares.shape().back());
    require(matrix.shape() == lengths({std::size_t(v.members), std::size_t(classes)}),
            "weights do not fit the costs");
    require(shares.type() == 'f' && Index(shares.size()) == v.nodes * (displaced ? v.labels : 1) * classes,
            "shares do not fit the costs");
    require(Index(length.size()) == v.labels, "lengths do not fit the labels");
    Array out = make<double>(costs, {std::size_t(v.nodes), std::size_t(v.labels)});
    costs.queue().launch(
        Unary{v.data, static_cast<const float*>(shares.raw()), matrix.data<double>(2), length.data<double>(1),
              int(v.members), classes, v.labels, displaced, v.nodes, tie_break, out.data<double>(2)},
        v.nodes * v.labels);
    return out;
}

Array label_vectors(const Array& labels, const Array& offsets, std::array<int, 3> k,
                    std::array<std::size_t, 3> nodes) {
    require(require_grid(nodes, "the grid of nodes") == labels.size(), "labels do not fit the grid");
    require(std::size_t(k[0]) + k[1] + k[2] == offsets.size(), "offsets do not fit the labels");
    Array out = make<float>(labels, {3, nodes[0], nodes[1], nodes[2]});
    labels.queue().launch(LabelVectors{labels.data<std::int32_t>(1),
                                       offsets.data<double>(1),
                                       {k[0], k[1], k[2]},
                                       Index(labels.size()),
                                       out.data<float>(4)},
                          3 * Index(labels.size()));
    return out;
}

// Message passing: a search as core/certify.hpp wants it.
class Minimiser {
  public:
    Minimiser(const Array& unary, std::array<int, 3> shape, const std::array<std::vector<double>, 3>& offsets,
              double weight, const std::optional<Array>& base, bool plain)
        : unary_(unary),
          base_(base),
          offsets_host_(offsets),
          offsets_(make<double>(unary, {offsets[0].size() + offsets[1].size() + offsets[2].size()})),
          labels_(make<std::int32_t>(unary, {2, unary.shape().at(0)})),
          best_(make<std::int32_t>(unary, {unary.shape()[0]})),
          parts_(make<double>(unary, {4, unary.shape()[0]})),
          scratch_(make<double>(unary, {3, unary.shape().at(1)})),
          progress_(make<std::int32_t>(unary, {std::size_t(shape[0]) * std::size_t(shape[1]) + 1})),
          plain_(plain) {
        std::vector<double> all;
        bool sorted = true;
        for (int a = 0; a < 3; ++a) {
            e_.shape[a] = shape[a];
            e_.k[a] = int(offsets[a].size());
            sorted = sorted && std::is_sorted(offsets[a].begin(), offsets[a].end());
            all.insert(all.end(), offsets[a].begin(), offsets[a].end());
        }
        e_.nodes = Index(require_grid(shape, "the grid of nodes"));
        e_.stride[0] = Index(shape[1]) * shape[2];
        e_.stride[1] = shape[2];
        e_.stride[2] = 1;
        e_.labels = e_.k[0] * e_.k[1] * e_.k[2];
        require(unary.shape() == lengths({std::size_t(e_.nodes), std::size_t(e_.labels)}),
                "unary does not fit the grid");
        require(std::isfinite(weight) && weight >= 0, "the pairwise weight must be finite and 0 or more");
        e_.weight = weight;
        e_.chained = sorted && !base;
        e_.unary = unary.data<double>(2);
        e_.base = base ? base->data<double>(2) : nullptr;
        e_.offsets = offsets_.data<double>(1);
        queue().upload(offsets_.raw(), all.data(), offsets_.bytes());
        queue().clear(progress_.raw(), progress_.bytes());
        make_messages();
    }

    std::tuple<Array, double, double, int> run(int max_iter, double tol) {
        start();
        const int iterations = certify(*this, max_iter, tol);
        return {best_, value_, std::min(bound_, value_), iterations};
    }

    double value() const { return value_; }
    double bound() const { return bound_; }

    void iterate() {
        pass(true, 0);
        pass(false, 1);
        queue().launch(NodeEnergy{e_, labels_.data<std::int32_t>(2), part(2)}, 2 * e_.nodes);
        const std::vector<double> numbers = totals(4);
        for (int i = 0; i < 2; ++i) {
            bound_ = std::max(bound_, numbers[std::size_t(i)] - margin_);
            if (!(numbers[std::size_t(i) + 2] < value_)) continue;
            value_ = numbers[std::size_t(i) + 2];
            queue().copy(best_.raw(), labels_.data<std::int32_t>(2) + i * e_.nodes, best_.bytes());
        }
    }

    bool steps(double wanted) {
        return moved([=](BinaryMoves& moves) { return moves.steps(wanted); });
    }
    bool expansions() {
        return moved([](BinaryMoves& moves) { return moves.expansions(); });
    }

  private:
    Array unary_;
    std::optional<Array> base_;
    std::array<std::vector<double>, 3> offsets_host_;
    Array offsets_, labels_, best_;
    Array parts_;                  // what the nodes add to four numbers
    std::vector<Array> messages_;  // one array, or those of the last pass and of this one
    Array scratch_, progress_;
    bool plain_, waves_ = false;
    LabelEnergy e_{};
    double value_ = 0, bound_ = -std::numeric_limits<double>::infinity(), margin_ = 0;
    int passes_ = 0;
    std::vector<double> host_unary_, host_base_;
    std::optional<GridEnergy> host_;

    Queue& queue() const { return unary_.queue(); }

    void make_messages() {
        const std::size_t n = std::size_t(e_.nodes);
#if !defined(REGWEAVE_TWIN)
        waves_ = !plain_ && e_.k[0] == kWaveEdge && e_.k[1] == kWaveEdge && e_.k[2] == kWaveEdge;
        if (waves_) {
            for (int i = 0; i < 2; ++i) messages_.push_back(make<double>(unary_, {3 * n, kWaveRow}));
            queue().fill(messages_[1].raw(), 0xff, messages_[1].bytes());  // not there yet
        }
#endif
        if (!waves_) messages_.push_back(make<double>(unary_, {3 * n, std::size_t(e_.labels)}));
        queue().clear(messages_[0].raw(), messages_[0].bytes());
    }

    double* part(int row) const { return parts_.data<double>(2) + row * e_.nodes; }

    // The first rows of the parts, added up, on the host.
    std::vector<double> totals(std::size_t rows) const {
        return fetched(short_row_sums(unary_, parts_.data<double>(2), rows, e_.nodes));
    }

    void start() {
        queue().launch(NodeStart{e_.unary, e_.labels, best_.data<std::int32_t>(1), part(0)}, e_.nodes);
        queue().launch(NodeEnergy{e_, best_.data<std::int32_t>(1), part(1)}, e_.nodes);
        const std::vector<double> found = totals(2);
        value_ = found[1];
        require(std::isfinite(value_), "the energy must be finite");
        margin_ =
            50 * std::numeric_limits<double>::epsilon() * (found[0] + 6 * diameter() * double(e_.nodes));
    }

    double diameter() {
        double sum = 0;
        for (int a = 0; a < 3; ++a) {
            const auto [low, high] = std::minmax_element(offsets_host_[a].begin(), offsets_host_[a].end());
            sum += *high - *low;
        }
        if (base_) {  // no two neighbours are farther apart than twice the largest displacement
            fetch_base();
            double most = 0;
            for (double b : host_base_) most = std::max(most, std::fabs(b));
            sum += 6 * most;
        }
        return e_.weight * sum;
    }

    // A pass in which the labels `which` are found, and what each node adds to the bound.
    void pass(bool forward, int which) {
        std::int32_t* labels = labels_.data<std::int32_t>(2) + which * e_.nodes;
#if !defined(REGWEAVE_TWIN)
        if (waves_) {
            TrwsWaves waves{e_,
                            messages_[0].data<double>(2),
                            messages_[1].data<double>(2),
                            labels,
                            part(which),
                            progress_.data<std::int32_t>(1),
                            passes_++,
                            forward};
            void* arguments[] = {&waves};
            queue().launch_named("regweave_TrwsWaves", Index(e_.shape[0]) * e_.shape[1], kWaveRow, arguments);
            std::swap(messages_[0], messages_[1]);
            return;
        }
#endif
        const TrwsPass body{e_,          messages_[0].data<double>(2), labels,
                            part(which), scratch_.data<double>(2),     forward};
#if !defined(REGWEAVE_TWIN)
        if (!plain_) {
            const int threads = (e_.labels + 31) / 32 * 32, groups = threads <= 128 ? 3 : 1;
            TrwsColumns columns{body, progress_.data<std::int32_t>(1), passes_++, groups};
            void* arguments[] = {&columns};
            const std::size_t shared =
                sizeof(double) * (e_.labels + groups * (2 * std::size_t(e_.labels) + 64));
            queue().launch_named("regweave_TrwsColumns", Index(e_.shape[0]) * e_.shape[1], threads * groups,
                                 arguments, shared);
            return;
        }
#endif
        queue().launch(body, 1);
    }

    void fetch_base() {
        if (!base_ || !host_base_.empty()) return;
        host_base_.resize(base_->size());
        queue().download(host_base_.data(), base_->raw(), base_->bytes());
    }

    // The energy on the host.
    const GridEnergy& on_host() {
        if (!host_) {
            host_unary_.resize(unary_.size());
            queue().download(host_unary_.data(), unary_.raw(), unary_.bytes());
            fetch_base();
            host_.emplace(std::array<int, 3>{e_.shape[0], e_.shape[1], e_.shape[2]}, offsets_host_, e_.weight,
                          host_unary_.data(), base_ ? host_base_.data() : nullptr);
        }
        return *host_;
    }

    // Cut moves are sequential: the host makes them.
    template <typename Move>
    bool moved(Move&& move) {
        const GridEnergy& energy = on_host();
        std::vector<int> labels(best_.size());
        queue().download(labels.data(), best_.raw(), best_.bytes());
        BinaryMoves moves(energy, labels);
        if (!move(moves)) return false;
        const double before = energy(labels), after = energy(moves.labels());
        if (after < before) {
            value_ = after;
            queue().upload(best_.raw(), moves.labels().data(), best_.bytes());
        }
        return true;
    }
};

std::tuple<Array, double, double, int> trws(const Array& unary, std::array<int, 3> shape,
                                            const std::array<std::vector<double>, 3>& offsets, double weight,
                                            const std::optional<Array>& base, int max_iter, double tol,
                                            bool plain) {
    require(max_iter >= 1 && tol >= 0, "max_iter must be 1 or more, tol 0 or more");
    nb::gil_scoped_release nogil;
    return Minimiser(unary, shape, offsets, weight, base, plain).run(max_iter, tol);
}

}  // namespace

void register_energies(nb::module_& m) {
    using namespace nb::literals;
    m.attr("MOST_LABELS") = 1024;
    m.def("fit_scales", &fit_scales, "costs"_a, "factor"_a.none(), "quiet"_a,
          "Scale of each member: root mean square of the spread over labels at nodes that are not quiet.");
    m.def("scale_costs", &scale_costs, "costs"_a, "scales"_a, "valid"_a, "masked"_a, "least"_a,
          "Divide costs by the scales, in place; nodes with fewer valid voxels cost nothing.");
    m.def("assemble", &assemble, "costs"_a, "shares"_a, "matrix"_a, "length"_a, "tie_break"_a,
          "Unaries, (N, L).");
    m.def("label_vectors", &label_vectors, "labels"_a, "offsets"_a, "k"_a, "nodes"_a,
          "Displacement of the control points that took these labels, (3, nodes).");
    m.def("trws", &trws, "unary"_a, "shape"_a, "offsets"_a, "weight"_a, "base"_a.none(), "max_iter"_a,
          "tol"_a, "plain"_a = false, "Labels (N,), their energy, a lower bound, iterations.");
}

}  // namespace regweave::gpu
