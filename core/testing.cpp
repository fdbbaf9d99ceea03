// Parts of the engines that tests call by themselves; a module of its own, which no wheel carries.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "grid_checks.hpp"
#include "grid_maxflow.hpp"
#include "label_grid.hpp"
#include "min_plus.hpp"
#include "moves.hpp"
#include "require.hpp"

namespace regweave {
namespace {

std::tuple<double, Out<bool>> grid_maxflow(In<double, 1> terminals, In<double, 2> arcs, Shape shape) {
    const std::size_t nodes = require_nodes(shape);
    require(terminals.shape(0) == nodes && arcs.shape(0) == nodes && arcs.shape(1) == 6,
            "terminals (N,) and arcs (N, 6) do not fit the grid");
    const double most = largest(terminals.data(), nodes, "terminals must be finite") +
                        largest(arcs.data(), arcs.size(), "arcs must be finite");
    require(most * double(nodes) < 1e300, "the capacities are too large to be added up");
    for (std::size_t i = 0; i < arcs.size(); ++i) require(arcs.data()[i] >= 0, "arcs must be 0 or more");
    const GridEnergy grid(shape, {std::vector<double>(1), std::vector<double>(1), std::vector<double>(1)}, 0,
                          nullptr, nullptr);
    const int n = grid.n_nodes;
    GridMaxflow flow(shape);
    for (int p = 0; p < n; ++p) flow.terminal(p) = terminals(p);
    for (int axis = 0; axis < 3; ++axis)
        grid.for_each_edge(axis, [&](int p, int q) {
            flow.arc(p, 2 * axis) = arcs(p, 2 * axis);
            flow.arc(q, 2 * axis + 1) = arcs(q, 2 * axis + 1);
        });
    const double value = flow.solve();
    NewArray<bool, 1> side({std::size_t(n)});
    for (int p = 0; p < n; ++p) side.data[p] = flow.source_side(p);
    return {value, side.release()};
}

Out<double> separable_message(In<double, 3> f, In<double, 1> x, In<double, 1> y, In<double, 1> z,
                              double weight, std::array<double, 3> shift, bool use_envelope) {
    require_offsets(x, y, z);
    require(f.shape(0) == x.shape(0) && f.shape(1) == y.shape(0) && f.shape(2) == z.shape(0),
            "f does not fit the offsets");
    const std::array<double, 6> base = {shift[0], shift[1], shift[2], 0, 0, 0};
    const GridEnergy e({2, 1, 1}, {to_vector(x), to_vector(y), to_vector(z)}, weight, nullptr, base.data());
    NewArray<double, 3> out({f.shape(0), f.shape(1), f.shape(2)});
    std::copy_n(f.data(), f.size(), out.data.get());
    if (use_envelope) {
        envelope(out.data.get(), {e.steps[0].data(), e.steps[1].data(), e.steps[2].data()}, e.k);
        return out.release();
    }
    std::vector<double> work(f.data(), f.data() + f.size()), tables(f.size() * f.size() * 3);
    std::array<const double*, 3> t;
    for (int axis = 0; axis < 3; ++axis) t[axis] = e.table(0, 1, axis, &tables[axis * f.size() * f.size()]);
    min_plus(work.data(), t, e.k, out.data.get());
    return out.release();
}

Out<int> binary_moves(In<double, 2> unary, Shape shape, In<double, 1> x, In<double, 1> y, In<double, 1> z,
                      double weight, std::optional<In<double, 2>> base, In<int, 1> init, bool expand) {
    const std::size_t nodes = require_nodes(shape), labels = require_offsets(x, y, z);
    require(unary.shape(0) == nodes && unary.shape(1) == labels, "unary (N, L) does not fit the grid");
    require(!base || (base->shape(0) == nodes && base->shape(1) == 3), "base (N, 3) does not fit the grid");
    require(init.shape(0) == nodes, "init (N,) does not fit the grid");
    for (std::size_t p = 0; p < nodes; ++p)
        require(init(p) >= 0 && std::size_t(init(p)) < labels, "init has a label that does not exist");
    const GridEnergy energy(shape, {to_vector(x), to_vector(y), to_vector(z)}, weight, unary.data(),
                            base ? base->data() : nullptr);
    BinaryMoves moves(energy, {init.data(), init.data() + nodes});
    expand ? moves.expansions() : moves.steps();
    NewArray<int, 1> out({nodes});
    std::copy(moves.labels().begin(), moves.labels().end(), out.data.get());
    return out.release();
}

}  // namespace
}  // namespace regweave

NB_MODULE(_core_test, m) {
    using namespace regweave;
    using namespace nb::literals;
    m.doc() = "Parts of the engines that tests call by themselves.";
    m.def(
        "grid_maxflow", &grid_maxflow, "terminals"_a, "arcs"_a, "shape"_a,
        "Value of a maximum flow and the nodes (N,) on the source's side; arcs (N, 6) go +x -x +y -y +z -z, "
        "terminals (N,) are positive from the source and negative to the sink.");
    m.def("binary_moves", &binary_moves, "unary"_a, "shape"_a, "x"_a, "y"_a, "z"_a, "weight"_a,
          "base"_a.none(), "init"_a, "expand"_a,
          "Labels (N,) after all steps along the axes, or after all expansions, one cut each.");
    m.def("separable_message", &separable_message, "f"_a, "x"_a, "y"_a, "z"_a, "weight"_a, "shift"_a,
          "use_envelope"_a,
          "min over a of f(a) + weight * Σ_axis |o(a) - o(b) + shift|; the envelope is the fast way without "
          "shift.");
}
