// Descent on control points on a GPU, and steps that do not fold.
#include <nanobind/stl/optional.h>

#include <optional>

#include "deform.hpp"
#include "descent.hpp"
#include "lattice.hpp"
#include "seam.hpp"
#include "smooth.hpp"
#include "tiles.hpp"
#include "totals.hpp"

namespace regweave::gpu {
namespace {

using Shape = std::array<std::size_t, 3>;
using Vector = std::array<double, 3>;

#if !defined(REGWEAVE_TWIN)
constexpr std::size_t kSharedBytes = 48 * 1024;

SparseRows sparse(const AxisRows& a) {
    return {a.start.data<std::int32_t>(1), a.column.data<std::int32_t>(1), a.weight.data<float>(1), a.rows,
            a.columns};
}
#endif

// The gradient in tiles, on a GPU and where a tile fits its memory; false where it is left to the plain
// bodies.
bool tile_gradient(Queue& q, const Lattice& lattice, const Array& force, const float* stretch, const Array& g,
                   const Array& squared) {
#if defined(REGWEAVE_TWIN)
    static_cast<void>(q), static_cast<void>(lattice), static_cast<void>(force), static_cast<void>(stretch),
        static_cast<void>(g), static_cast<void>(squared);
    return false;
#else
    const AxisRows* axis[3] = {&lattice.transposed(0), &lattice.transposed(1), &lattice.transposed(2)};
    const int n[3] = {axis[0]->rows, axis[1]->rows, axis[2]->rows}, depth = tile_depth(n);
    const int reach[3] = {widest(axis[0]->host, depth), widest(axis[1]->host, kBlockY),
                          widest(axis[2]->host, kBlockZ)};
    const std::size_t bytes = sizeof(float) * std::size_t(depth) * (reach[1] + kBlockY) * reach[2];
    const bool short_rows = longest(axis[1]->host) <= kMostTerms && longest(axis[2]->host) <= kMostTerms;
    if (reach[0] == 0 || reach[0] > kMostColumns || reach[1] == 0 || reach[2] == 0 || !short_rows ||
        bytes > kSharedBytes)
        return false;
    TileGradient body{{sparse(*axis[0]), sparse(*axis[1]), sparse(*axis[2])},
                      force.data<float>(4),
                      force.extent(),
                      {stretch[0], stretch[1], stretch[2]},
                      g.data<float>(4),
                      squared.data<double>(1),
                      reach[1],
                      reach[2]};
    void* arguments[] = {&body};
    q.launch_named(depth == 8 ? "regweave_TileGradient8" : "regweave_TileGradient4", tile_blocks(n, depth),
                   kBlockY * kBlockZ, arguments, bytes);
    return true;
#endif
}

// u ∘ (id + δ) in tiles, likewise.
bool tile_step(Queue& q, const Lattice& lattice, const Array& u, const Array& update, const Array& out) {
#if defined(REGWEAVE_TWIN)
    static_cast<void>(q), static_cast<void>(lattice), static_cast<void>(u), static_cast<void>(update),
        static_cast<void>(out);
    return false;
#else
    const AxisRows* axis[3] = {&lattice.rows(0), &lattice.rows(1), &lattice.rows(2)};
    const int n[3] = {axis[0]->rows, axis[1]->rows, axis[2]->rows}, depth = tile_depth(n);
    const int reach[2] = {widest(axis[0]->host, depth), widest(axis[1]->host, kBlockY)};
    const std::size_t bytes = sizeof(float) * std::size_t(reach[0]) * reach[1] * kBlockZ;
    if (reach[0] == 0 || reach[0] > kMostColumns || reach[1] == 0 || widest(axis[2]->host, kBlockZ) == 0 ||
        bytes > kSharedBytes)
        return false;
    TileStep body{{sparse(*axis[0]), sparse(*axis[1]), sparse(*axis[2])},
                  update.data<float>(4),
                  field_data(u),
                  u.extent(),
                  out.data<float>(4)};
    void* arguments[] = {&body};
    q.launch_named(depth == 8 ? "regweave_TileStep8" : "regweave_TileStep4", tile_blocks(n, depth),
                   kBlockY * kBlockZ, arguments, bytes);
    return true;
#endif
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

    Array update(const Array& force, bool plain) {
        ++done_;
        field_data(force);
        const auto& nodes = lattice_->nodes();
        const Array squared = make<double>(force, {n_}),
                    g = make<float>(force, {3, nodes[0], nodes[1], nodes[2]});
        const Array out = make<float>(force, g.shape());
        Queue& q = force.queue();
        gradient(force, g, squared, plain);
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
    void gradient(const Array& force, const Array& g, const Array& squared, bool plain) {
        if (!plain && tile_gradient(force.queue(), *lattice_, force, stretch_, g, squared)) return;
        const Array found = lattice_->adjoint(force);
        force.queue().copy(g.raw(), found.raw(), g.bytes());
        GradientSquares square{g.data<float>(4), squared.data<double>(1), {}, Index(n_)};
        std::copy_n(stretch_, 3, square.stretch);
        force.queue().launch(square, Index(n_));
    }

    std::shared_ptr<Lattice> lattice_;
    std::size_t n_;
    Array first_, second_;
    float stretch_[3];
    double length_, reach_, quiet_, keep_[2];
    int done_ = 0;
};

// A flag in memory of the host that the GPU writes to.
class Flag {
  public:
    explicit Flag(Queue& queue) : queue_(queue), value_(static_cast<std::int32_t*>(queue.take_pinned(4))) {}
    ~Flag() { queue_.give_pinned(value_); }
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;

    // To be raised by work that is queued next; nothing that was queued before may raise it still.
    std::int32_t* lowered() {
        *value_ = 0;
        return value_;
    }
    bool raised() {
        queue_.wait();
        return *static_cast<volatile std::int32_t*>(value_) != 0;
    }

  private:
    Queue& queue_;
    std::int32_t* value_;
};

Reaches reaches(const Lattice& lattice, int axis) {
    const AxisRows& r = lattice.rows(axis);
    return {r.start.data<std::int32_t>(1), r.column.data<std::int32_t>(1), r.columns};
}

// Marks with all voxels within so many steps to a neighbour; both arrays are written to, and one is returned.
Array dilated(Array mark, Array spare, const Extent& grid, int steps) {
    for (int step = 0; step < steps; ++step) {
        mark.queue().launch(Dilate{mark.data<std::uint8_t>(1), grid, spare.data<std::uint8_t>(1)},
                            grid.volume());
        std::swap(mark, spare);
    }
    return mark;
}

// u ∘ (id + δ), δ that of the update; control points near a voxel that would fold are left where they are.
std::pair<Array, int> held_back(const Array& u, const Array& update, const Lattice& lattice, double least,
                                int attempts, bool plain) {
    const Extent grid = u.extent();
    Queue& q = u.queue();
    const Index n = grid.volume();
    const auto flat = std::vector<std::size_t>{std::size_t(n)};
    const Array mark = make<std::uint8_t>(u, flat), spare = make<std::uint8_t>(u, flat);
    Flag any(q);
    Array held = update;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const Array out = make<float>(u, u.shape());
        if (plain || !tile_step(q, lattice, u, held, out)) {
            const Array d = lattice.displacement(held);
            q.launch(Compose{field_data(u), field_data(d), grid, out.data<float>(4)}, n);
        }
        q.launch(Folding{field_data(u), out.data<float>(4), grid, float(least), mark.data<std::uint8_t>(1),
                         any.lowered()},
                 n);
        if (!any.raised()) return {out, attempt + 1};
        if (attempt == 0) {
            held = make<float>(update, update.shape());
            q.copy(held.raw(), update.raw(), held.bytes());
        }
        const Array near = dilated(mark, spare, grid, attempt + 1);
        q.launch(Hold{near.data<std::uint8_t>(1),
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
    const Array mark = make<std::uint8_t>(u, flat);
    Flag any(q);
    q.clear(mark.raw(), mark.bytes());
    for (int a = 0; a < 3; ++a)
        require(factors[a] >= 1 && (fine.n[a] - 1) / factors[a] < grid.n[a], "blocks must cover the image");
    q.launch(FoldedBlocks{field_data(u),
                          fine,
                          grid,
                          {factors[0], factors[1], factors[2]},
                          mark.data<std::uint8_t>(1),
                          any.lowered()},
             fine.volume());
    if (!any.raised()) return std::nullopt;
    const Array wide = dilated(mark, make<std::uint8_t>(u, flat), grid, reach);
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
    nb::class_<Descent>(m, "Descent")
        .def(nb::init<const std::shared_ptr<Queue>&, std::shared_ptr<Lattice>, const Vector&, double, double,
                      double, double, double>(),
             "queue"_a, "lattice"_a, "stretch"_a, "length"_a, "reach"_a, "quiet"_a, "first"_a, "second"_a)
        .def("update", &Descent::update, "force"_a, "plain"_a = false, "Displacement of the control points.");
    m.def("held_back", &held_back, "u"_a, "update"_a, "lattice"_a, "least"_a, "attempts"_a, "plain"_a = false,
          nb::call_guard<nb::gil_scoped_release>(),
          "Return u ∘ (id + δ), held back where it would fold, and the number of attempts.");
    m.def("folded_blocks", &folded_blocks, "u"_a, "shape"_a, "factors"_a, "reach"_a,
          nb::call_guard<nb::gil_scoped_release>(), "Mark blocks near folding voxels of u, or return None.");
    m.def("where_marked", &where_marked, "u"_a, "other"_a, "mark"_a,
          "A copy of u with the values of another array where a mark is.");
}

}  // namespace regweave::gpu
