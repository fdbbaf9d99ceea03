// Forces of the refinement on a GPU: penalties of compared features, and the smoothness.
#include <nanobind/stl/optional.h>

#include <optional>

#include "march.hpp"
#include "seam.hpp"
#include "totals.hpp"

namespace regweave::gpu {
namespace {

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

#if !defined(REGWEAVE_TWIN)
// The same sums by marching, for windows that there are kernels for.
void march(Queue& q, MarchSlopes slopes, MarchForce force) {
    static const char* const names[2][kMarchRadius] = {
        {"regweave_MarchSlopes1", "regweave_MarchSlopes2", "regweave_MarchSlopes3"},
        {"regweave_MarchForce1", "regweave_MarchForce2", "regweave_MarchForce3"}};
    const int r = force.pull.radius;
    const Index blocks = march_blocks(force.pull.grid, force.chunk);
    void *first[] = {&slopes}, *second[] = {&force};
    q.launch_named(names[0][r - 1], blocks, kTileY * kTileZ, first);
    q.launch_named(names[1][r - 1], blocks, kTileY * kTileZ, second);
}
#endif

void correlation(Balance& sum, const Array& fixed, const Array& sums, const Array& moved, const Array& weight,
                 const std::optional<Array>& factor, double share, int radius, double floor, bool squared,
                 bool plain) {
    const Extent grid = compared(sum, fixed, moved);
    require_same(sums.extent(), grid, "sums must lie on the grid of the features");
    require(floor > 0.0, "the floor of the variance must be positive");
    const float *f = fixed.data<float>(3), *m = moved.data<float>(3);
    auto shape = moved.shape();
    shape.insert(shape.begin(), 3);
    const Array one = make<float>(moved, shape);
    float* a = one.data<float>(4);
    Queue& q = moved.queue();
    const Slopes slopes{sums.data<float>(4),
                        a,
                        sum.data_cost(),
                        weighing(weight, factor, share, grid),
                        grid,
                        radius,
                        float(floor),
                        int(squared)};
    const Pull pull{f, m, sum.force.data<float>(4), grid, radius};
#if !defined(REGWEAVE_TWIN)
    if (!plain && radius >= 1 && radius <= kMarchRadius) {
        const int chunk = march_chunk(grid);
        march(q, {slopes, f, m, chunk}, {pull, a, chunk});
        return;
    }
#endif
    static_cast<void>(plain);
    const Array two = make<float>(moved, shape);
    float* b = two.data<float>(4);
    const Index n = grid.volume();
    q.launch(ProductSums{f, m, a, grid, radius}, n);
    q.launch(AxisSums{a, grid, 1, radius, 3, b}, n);
    q.launch(CorrelationSlopes{slopes, b}, n);
    q.launch(AxisSums{a, grid, 2, radius, 3, b}, n);
    q.launch(AxisSums{b, grid, 1, radius, 3, a}, n);
    q.launch(CorrelationForce{pull, a}, n);
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

}  // namespace

void register_forces(nb::module_& m) {
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
          "share"_a, "radius"_a, "floor"_a, "squared"_a, "plain"_a = false,
          "Add the weighted one minus local correlation of one channel (X, Y, Z).");
    m.def("add_force", &add_given, "sum"_a, "force"_a, "Add a force that the host has computed.");
    m.def("force_moments", &force_moments, "force"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Sums of |force|² and |force|⁴ over voxels.");
}

}  // namespace regweave::gpu
