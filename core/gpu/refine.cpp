// The refinement on a GPU: forces of the penalties and of the smoothness, descent, steps that do not fold.
#include <nanobind/stl/optional.h>

#include <optional>

#include "correlation.hpp"
#include "deform.hpp"
#include "descent.hpp"
#include "lattice.hpp"
#include "seam.hpp"
#include "smooth.hpp"
#include "totals.hpp"

namespace regweave::gpu {
namespace {

using Shape = std::array<std::size_t, 3>;
using Vector = std::array<double, 3>;
using Factors = std::array<std::array<double, 3>, 3>;

// What penalties add to: a force (3, X, Y, Z) and the costs of each voxel, those of the data and smoothness.
struct Balance {
    Array force, costs;

    float* data_cost() const { return costs.data<float>(4); }
    std::pair<double, double> totals() const {
        const Index n = force.extent().volume();
        const auto sums = fetched(row_sums(costs, costs.data<float>(4), 2, n));
        return {sums[0], sums[1]};
    }
};

Balance balance(const Array& u) {
    auto shape = u.shape();
    shape[0] = 2;
    Balance out{make<float>(u, u.shape()), make<float>(u, shape)};
    field_data(u);
    u.queue().clear(out.force.raw(), out.force.bytes());
    u.queue().clear(out.costs.raw(), out.costs.bytes());
    return out;
}

Balance diffusion(const Array& u, const std::optional<Array>& stiffness, const Factors& factors,
                  double strength) {
    const Extent grid = u.extent();
    auto shape = u.shape();
    shape[0] = 2;
    Balance out{make<float>(u, u.shape()), make<float>(u, shape)};
    u.queue().clear(out.costs.raw(), out.costs.bytes() / 2);
    Diffusion body{field_data(u), nullptr, out.force.data<float>(4), out.data_cost() + grid.volume(),
                   grid,          {},      float(strength)};
    if (stiffness) {
        require_same(stiffness->extent(), grid, "u and stiffness must lie on one grid");
        body.stiffness = stiffness->data<float>(3);
    }
    for (int c = 0; c < 3; ++c)
        for (int a = 0; a < 3; ++a) body.factor[3 * c + a] = float(factors[c][a]);
    u.queue().launch(body, grid.volume());
    return out;
}

// A weight map, and factors of a channel, one for all voxels, (1, 1, 1), or one for each.
Weighing weighing(const Array& weight, const std::optional<Array>& factor, double share, const Extent& grid) {
    require_same(weight.extent(), grid, "weights must lie on the grid of the features");
    Weighing out{weight.data<float>(3), nullptr, 0, float(share)};
    if (factor) {
        out.factor = factor->data<float>(3);
        out.each = factor->size() != 1;
        if (out.each) require_same(factor->extent(), grid, "factors must lie on the grid of the features");
    }
    return out;
}

Extent compared(const Balance& sum, const Array& fixed, const Array& moved) {
    require(fixed.shape() == moved.shape(), "fixed and moved features must have one shape");
    require_same(sum.force.extent(), moved.extent(), "features and force must lie on one grid");
    return moved.extent();
}

void absolute(Balance& sum, const Array& fixed, const Array& moved, const Array& weight,
              const std::optional<Array>& factor, double share, double epsilon) {
    const Extent grid = compared(sum, fixed, moved);
    require(epsilon > 0.0, "epsilon must be positive");
    moved.queue().launch(
        Absolute{fixed.data<float>(4), moved.data<float>(4), sum.force.data<float>(4), sum.data_cost(),
                 weighing(weight, factor, share, grid), grid, float(epsilon), int(moved.shape()[0])},
        grid.volume());
}

void tensor(Balance& sum, const Array& fixed, const Array& moved, const Array& weight,
            const std::optional<Array>& factor, double share) {
    const Extent grid = compared(sum, fixed, moved);
    moved.queue().launch(
        Tensor{fixed.data<float>(4), moved.data<float>(4), sum.force.data<float>(4), sum.data_cost(),
               weighing(weight, factor, share, grid), grid, int(moved.shape()[0])},
        grid.volume());
}

// Sums of f and f² in the cube round each voxel of one channel, (2, X, Y, Z): they stay while u moves.
Array local_sums(const Array& fixed, int radius) {
    const Extent grid = fixed.extent();
    require(radius >= 0 && radius <= 1024, "the radius must be 0 to 1024 voxels");
    auto shape = fixed.shape();
    shape.insert(shape.begin(), 2);
    const Array a = make<float>(fixed, shape), b = make<float>(fixed, shape);
    float *p = a.data<float>(4), *q = b.data<float>(4);
    fixed.queue().launch(ProductSums{fixed.data<float>(3), nullptr, p, grid, radius}, grid.volume());
    fixed.queue().launch(AxisSums{p, grid, 1, radius, 2, q}, grid.volume());
    fixed.queue().launch(AxisSums{q, grid, 0, radius, 2, p}, grid.volume());
    return a;
}

void correlation(Balance& sum, const Array& fixed, const Array& sums, const Array& moved, const Array& weight,
                 const std::optional<Array>& factor, double share, int radius, double floor, bool squared) {
    const Extent grid = compared(sum, fixed, moved);
    require_same(sums.extent(), grid, "sums must lie on the grid of the features");
    require(floor > 0.0, "the floor of the variance must be positive");
    const float *f = fixed.data<float>(3), *m = moved.data<float>(3);
    auto shape = moved.shape();
    shape.insert(shape.begin(), 3);
    const Array one = make<float>(moved, shape), two = make<float>(moved, shape);
    float *a = one.data<float>(4), *b = two.data<float>(4);
    Queue& q = moved.queue();
    const Index n = grid.volume();
    q.launch(ProductSums{f, m, a, grid, radius}, n);
    q.launch(AxisSums{a, grid, 1, radius, 3, b}, n);
    q.launch(
        CorrelationSlopes{sums.data<float>(4), b, a, sum.data_cost(), weighing(weight, factor, share, grid),
                          grid, radius, float(floor), int(squared)},
        n);
    q.launch(AxisSums{a, grid, 2, radius, 3, b}, n);
    q.launch(AxisSums{b, grid, 1, radius, 3, a}, n);
    q.launch(CorrelationForce{f, m, a, sum.force.data<float>(4), grid, radius}, n);
}

void add_given(Balance& sum, const Array& force) {
    require(force.shape() == sum.force.shape(), "both forces must lie on one grid");
    sum.force.queue().launch(AddInto{force.data<float>(4), sum.force.data<float>(4)}, Index(force.size()));
}

// Σ |force|² and Σ |force|⁴ over voxels.
std::vector<double> force_moments(const Array& force) {
    const Index n = force.extent().volume();
    const Array squares = make<double>(force, {std::size_t(2 * n)});
    force.queue().launch(ForceSquares{field_data(force), squares.data<double>(1), int(n)}, n);
    return fetched(row_sums(force, squares.data<double>(1), 2, n));
}

// Adam with its memory of earlier gradients.
class Descent {
  public:
    Descent(const std::shared_ptr<Queue>& queue, std::shared_ptr<Lattice> lattice, const Vector& stretch,
            double length, double reach, double quiet, double keep_first, double keep_second)
        : lattice_(std::move(lattice)),
          n_(lattice_->nodes()[0] * lattice_->nodes()[1] * lattice_->nodes()[2]),
          first_(queue, 'f', {3, n_}),
          second_(queue, 'd', {n_}),
          length_(length),
          reach_(reach),
          quiet_(quiet),
          keep_{keep_first, keep_second} {
        for (int a = 0; a < 3; ++a) stretch_[a] = float(stretch[a]);
        queue->clear(first_.raw(), first_.bytes());
        queue->clear(second_.raw(), second_.bytes());
    }

    Array update(const Array& force) {
        ++done_;
        field_data(force);
        const Array g = lattice_->adjoint(force);
        const Array squared = make<double>(force, {n_}), out = make<float>(force, g.shape());
        Queue& q = force.queue();
        GradientSquares square{g.data<float>(4), squared.data<double>(1), {}, Index(n_)};
        std::copy_n(stretch_, 3, square.stretch);
        q.launch(square, Index(n_));
        const Array total = row_sums(force, squared.data<double>(1), 1, Index(n_));
        AdamStep step{g.data<float>(4),
                      squared.data<double>(1),
                      total.data<double>(1),
                      first_.data<float>(2),
                      second_.data<double>(1),
                      out.data<float>(4),
                      {},
                      {keep_[0], keep_[1]},
                      {1.0 - std::pow(keep_[0], done_), 1.0 - std::pow(keep_[1], done_)},
                      length_,
                      reach_,
                      quiet_,
                      Index(n_)};
        std::copy_n(stretch_, 3, step.stretch);
        q.launch(step, Index(n_));
        return out;
    }

  private:
    std::shared_ptr<Lattice> lattice_;
    std::size_t n_;
    Array first_, second_;
    float stretch_[3];
    double length_, reach_, quiet_, keep_[2];
    int done_ = 0;
};

bool happened(const Array& flag) {
    std::int32_t any = 0;
    flag.queue().download(&any, flag.raw(), sizeof any);
    return any != 0;
}

Reaches reaches(const Lattice& lattice, int axis) {
    const AxisRows& r = lattice.rows(axis);
    return {r.start.data<std::int32_t>(1), r.column.data<std::int32_t>(1), r.columns};
}

// u ∘ (id + δ), δ that of the update; control points near a voxel that would fold are left where they are.
std::pair<Array, int> held_back(const Array& u, const Array& update, const Lattice& lattice, double least,
                                int attempts) {
    const Extent grid = u.extent();
    Queue& q = u.queue();
    const Index n = grid.volume();
    const auto flat = std::vector<std::size_t>{std::size_t(n)};
    const Array mark = make<std::uint8_t>(u, flat), wide = make<std::uint8_t>(u, flat);
    const Array any = make<std::int32_t>(u, {1});
    Array held = update;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const Array d = lattice.displacement(held);
        const Array out = make<float>(u, u.shape());
        q.launch(Compose{field_data(u), field_data(d), grid, out.data<float>(4)}, n);
        q.clear(any.raw(), any.bytes());
        q.launch(Folding{field_data(u), out.data<float>(4), grid, float(least), mark.data<std::uint8_t>(1),
                         any.data<std::int32_t>(1)},
                 n);
        if (!happened(any)) return {out, attempt + 1};
        if (attempt == 0) {
            held = make<float>(update, update.shape());
            q.copy(held.raw(), update.raw(), held.bytes());
        }
        q.clear(wide.raw(), wide.bytes());
        q.launch(Dilate{mark.data<std::uint8_t>(1), grid, attempt + 1, wide.data<std::uint8_t>(1)}, n);
        q.launch(Hold{wide.data<std::uint8_t>(1),
                      grid,
                      {reaches(lattice, 0), reaches(lattice, 1), reaches(lattice, 2)},
                      held.data<float>(4)},
                 n);
    }
    return {u, attempts};
}

// Marks blocks of a shrunken grid that hold folding voxels of the image; None where there are none.
std::optional<Array> folded_blocks(const Array& u, const Shape& coarse, const std::array<int, 3>& factors,
                                   int reach) {
    const Extent fine = u.extent(), grid{{int(coarse[0]), int(coarse[1]), int(coarse[2])}};
    Queue& q = u.queue();
    const auto flat = std::vector<std::size_t>{std::size_t(grid.volume())};
    const Array mark = make<std::uint8_t>(u, flat), any = make<std::int32_t>(u, {1});
    q.clear(any.raw(), any.bytes());
    q.clear(mark.raw(), mark.bytes());
    for (int a = 0; a < 3; ++a)
        require(factors[a] >= 1 && (fine.n[a] - 1) / factors[a] < grid.n[a], "blocks must cover the image");
    q.launch(FoldedBlocks{field_data(u),
                          fine,
                          grid,
                          {factors[0], factors[1], factors[2]},
                          mark.data<std::uint8_t>(1),
                          any.data<std::int32_t>(1)},
             fine.volume());
    if (!happened(any)) return std::nullopt;
    const Array wide = make<std::uint8_t>(u, flat);
    q.clear(wide.raw(), wide.bytes());
    q.launch(Dilate{mark.data<std::uint8_t>(1), grid, reach, wide.data<std::uint8_t>(1)}, grid.volume());
    return wide.reshaped({coarse[0], coarse[1], coarse[2]});
}

// A copy of u that has the values of another array where a mark is.
Array where_marked(const Array& u, const Array& other, const Array& mark) {
    const Extent grid = u.extent();
    require(u.shape() == other.shape(), "both arrays must have one shape");
    require_same(mark.extent(), grid, "marks must lie on the grid of the array");
    const Array out = make<float>(u, u.shape());
    u.queue().copy(out.raw(), u.raw(), u.bytes());
    u.queue().launch(TakeMarked{other.data<float>(4), mark.data<std::uint8_t>(3), int(u.shape()[0]),
                                grid.volume(), out.data<float>(4)},
                     grid.volume());
    return out;
}

}  // namespace

void register_refine(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Balance>(m, "Balance")
        .def_ro("force", &Balance::force)
        .def("totals", &Balance::totals, nb::call_guard<nb::gil_scoped_release>(),
             "Cost of the data and of the smoothness, on the host.");
    m.def("balance", &balance, "u"_a, "No force and no cost on the grid of u.");
    m.def("diffusion", &diffusion, "u"_a, "stiffness"_a.none(), "factors"_a, "strength"_a,
          "Squared differences of u; the force is multiplied by the strength, the cost is not.");
    m.def("absolute", &absolute, "sum"_a, "fixed"_a, "moved"_a, "weight"_a, "factor"_a.none(), "share"_a,
          "epsilon"_a, "Add the weighted smooth absolute difference.");
    m.def("tensor", &tensor, "sum"_a, "fixed"_a, "moved"_a, "weight"_a, "factor"_a.none(), "share"_a,
          "Add the weighted difference of the outer products.");
    m.def("local_sums", &local_sums, "fixed"_a, "radius"_a, "Sums of f and f² round each voxel.");
    m.def("correlation", &correlation, "sum"_a, "fixed"_a, "sums"_a, "moved"_a, "weight"_a, "factor"_a.none(),
          "share"_a, "radius"_a, "floor"_a, "squared"_a,
          "Add the weighted one minus local correlation of one channel (X, Y, Z).");
    m.def("add_force", &add_given, "sum"_a, "force"_a, "Add a force that the host has computed.");
    m.def("force_moments", &force_moments, "force"_a, "Sums of |force|² and |force|⁴ over voxels.");
    nb::class_<Descent>(m, "Descent")
        .def(nb::init<const std::shared_ptr<Queue>&, std::shared_ptr<Lattice>, const Vector&, double, double,
                      double, double, double>(),
             "queue"_a, "lattice"_a, "stretch"_a, "length"_a, "reach"_a, "quiet"_a, "first"_a, "second"_a)
        .def("update", &Descent::update, "force"_a, "Displacement of the control points.");
    m.def("held_back", &held_back, "u"_a, "update"_a, "lattice"_a, "least"_a, "attempts"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Return u ∘ (id + δ), held back where it would fold, and the number of attempts.");
    m.def("folded_blocks", &folded_blocks, "u"_a, "shape"_a, "factors"_a, "reach"_a,
          "Mark blocks near folding voxels of u, or return None.");
    m.def("where_marked", &where_marked, "u"_a, "other"_a, "mark"_a,
          "A copy of u with the values of another array where a mark is.");
}

}  // namespace regweave::gpu
