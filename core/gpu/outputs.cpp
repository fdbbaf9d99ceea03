// What is made of a displacement in the end, on a GPU: warped images, the inverse.
#include "inverse.hpp"
#include "seam.hpp"

namespace regweave::gpu {
namespace {

Array warp_filled(const Array& image, const In<double, 2>& matrix, const Array& u, double fill) {
    const Extent to = u.extent();
    const Array out = make<float>(u, {std::size_t(to.n[0]), std::size_t(to.n[1]), std::size_t(to.n[2])});
    u.queue().launch(WarpFilled{image.data<float>(3), image.extent(), matrix_of(matrix), field_data(u), to,
                                float(fill), out.data<float>(3)},
                     to.volume());
    return out;
}

std::pair<Array, Array> invert(const Array& u, const In<double, 2>& matrix,
                               const In<double, 2>& inverse_matrix, const std::array<std::size_t, 3>& shape,
                               int max_iter, double tolerance) {
    require_grid(shape, "the grid of the result");
    require(max_iter >= 1 && tolerance >= 0.0, "max_iter must be 1 or more, the tolerance 0 or more");
    const Extent to{{int(shape[0]), int(shape[1]), int(shape[2])}};
    const Array out = make<float>(u, {3, shape[0], shape[1], shape[2]});
    const Array residual = make<float>(u, {shape[0], shape[1], shape[2]});
    u.queue().launch(Invert{field_data(u), u.extent(), matrix_of(matrix), matrix_of(inverse_matrix), to,
                            max_iter, tolerance, out.data<float>(4), residual.data<float>(3)},
                     to.volume());
    return {out, residual};
}

Array return_errors(const Array& u, const In<double, 2>& there, const Array& back,
                    const In<double, 2>& fixed_mm, const In<double, 2>& forward,
                    const In<double, 2>& inverse) {
    const Extent grid = u.extent();
    const Array out =
        make<float>(u, {std::size_t(grid.n[0]), std::size_t(grid.n[1]), std::size_t(grid.n[2])});
    u.queue().launch(
        ReturnErrors{field_data(u), grid, matrix_of(there), field_data(back), back.extent(),
                     matrix_of(fixed_mm), matrix_of(forward), matrix_of(inverse), out.data<float>(3)},
        grid.volume());
    return out;
}

}  // namespace

void register_outputs(nb::module_& m) {
    using namespace nb::literals;
    m.def("warp_filled", &warp_filled, "image"_a, "matrix"_a, "u"_a, "fill"_a,
          "An image at matrix · (x + u(x)), fill outside.");
    m.def("invert", &invert, "u"_a, "matrix"_a, "inverse_matrix"_a, "shape"_a, "max_iter"_a, "tolerance"_a,
          "Solve matrix · (p + u(p)) = q for each voxel q; return matrix · p - q and |p + u(p) - r|.");
    m.def("return_errors", &return_errors, "u"_a, "there"_a, "back"_a, "fixed_mm"_a, "forward"_a, "inverse"_a,
          "Millimetres between each fixed voxel and where it ends, there and back; NaN outside.");
}

}  // namespace regweave::gpu
