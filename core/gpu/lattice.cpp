// Free-form deformations on a GPU.
#include "lattice.hpp"

#include "seam.hpp"

namespace regweave::gpu {

AxisRows::AxisRows(const std::shared_ptr<Queue>& queue, const AxisMatrix& m)
    : start(queue, 'i', {m.start.size()}),
      column(queue, 'i', {m.column.size()}),
      weight(queue, 'f', {m.weight.size()}),
      rows(int(m.n_rows())),
      columns(int(m.n_columns)),
      host(m) {
    const std::vector<std::int32_t> s(m.start.begin(), m.start.end()), c(m.column.begin(), m.column.end());
    queue->upload(start.raw(), s.data(), start.bytes());
    queue->upload(column.raw(), c.data(), column.bytes());
    queue->upload(weight.raw(), m.weight.data(), weight.bytes());
}

void AxisRows::multiply(const float* in, float* out, Index outer, Index inner) const {
    require(outer * rows * inner < (Index(1) << 32), "a free-form deformation has too many values");
    start.queue().launch(AxisProduct{start.data<std::int32_t>(1), column.data<std::int32_t>(1),
                                     weight.data<float>(1), in, out, rows, columns, inner},
                         outer * rows * inner);
}

Lattice::Lattice(std::shared_ptr<Queue> queue, std::array<double, 3> origin, std::array<double, 3> spacing,
                 std::array<std::size_t, 3> nodes, std::array<std::size_t, 3> shape)
    : nodes_(nodes), shape_(shape) {
    require_grid(shape, "the grid of voxels");
    require_grid(nodes, "the lattice");
    for (int a = 0; a < 3; ++a) {
        require(std::isfinite(origin[a]) && std::isfinite(spacing[a]) && spacing[a] > 0.0,
                "the control spacing must be positive, it and the origin finite");
        const AxisMatrix m = cubic_bspline(shape[a], nodes[a], origin[a], spacing[a]);
        rows_.emplace_back(queue, m);
        transposed_.emplace_back(queue, m.transposed());
    }
}

Array Lattice::displacement(const Array& coefficients) const {
    const Extent e = coefficients.extent();
    for (int a = 0; a < 3; ++a)
        require(std::size_t(e.n[a]) == nodes_[a], "control points do not fit the lattice");
    const std::size_t c = coefficients.shape()[0];
    // Last axis first: the long lines of the other two products then run over neighbouring voxels.
    Array lines = make<float>(coefficients, {c, nodes_[0], nodes_[1], shape_[2]});
    Array planes = make<float>(coefficients, {c, nodes_[0], shape_[1], shape_[2]});
    Array out = make<float>(coefficients, {c, shape_[0], shape_[1], shape_[2]});
    rows_[2].multiply(coefficients.data<float>(4), lines.data<float>(4), Index(c * nodes_[0] * nodes_[1]), 1);
    rows_[1].multiply(lines.data<float>(4), planes.data<float>(4), Index(c * nodes_[0]), Index(shape_[2]));
    rows_[0].multiply(planes.data<float>(4), out.data<float>(4), Index(c), Index(shape_[1] * shape_[2]));
    return out;
}

Array Lattice::adjoint(const Array& dense) const {
    const Extent e = dense.extent();
    for (int a = 0; a < 3; ++a) require(std::size_t(e.n[a]) == shape_[a], "voxels do not fit the lattice");
    const std::size_t c = dense.shape()[0];
    Array planes = make<float>(dense, {c, nodes_[0], shape_[1], shape_[2]});
    Array lines = make<float>(dense, {c, nodes_[0], nodes_[1], shape_[2]});
    Array out = make<float>(dense, {c, nodes_[0], nodes_[1], nodes_[2]});
    transposed_[0].multiply(dense.data<float>(4), planes.data<float>(4), Index(c),
                            Index(shape_[1] * shape_[2]));
    transposed_[1].multiply(planes.data<float>(4), lines.data<float>(4), Index(c * nodes_[0]),
                            Index(shape_[2]));
    transposed_[2].multiply(lines.data<float>(4), out.data<float>(4), Index(c * nodes_[0] * nodes_[1]), 1);
    return out;
}

void register_lattice(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Lattice>(m, "Lattice")
        .def(nb::init<std::shared_ptr<Queue>, std::array<double, 3>, std::array<double, 3>,
                      std::array<std::size_t, 3>, std::array<std::size_t, 3>>(),
             "queue"_a, "origin"_a, "spacing"_a, "nodes"_a, "shape"_a)
        .def("displacement", &Lattice::displacement, "coefficients"_a, "Free-form deformation, (C, X, Y, Z).")
        .def("adjoint", &Lattice::adjoint, "dense"_a, "Its transpose, (C, nodes).");
}

}  // namespace regweave::gpu
