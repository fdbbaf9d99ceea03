// Warps and dense displacement fields on a GPU.
#include <nanobind/stl/optional.h>

#include "seam.hpp"

namespace regweave::gpu {
namespace {

std::vector<std::size_t> shape_of(const Extent& e) {
    return {std::size_t(e.n[0]), std::size_t(e.n[1]), std::size_t(e.n[2])};
}

std::vector<std::size_t> shape_of(std::size_t channels, const Extent& e) {
    return {channels, std::size_t(e.n[0]), std::size_t(e.n[1]), std::size_t(e.n[2])};
}

Array warp(const Array& image, const In<double, 2>& matrix, const Array& u) {
    const Extent to = u.extent(), from = image.extent();
    const std::size_t channels = image.shape()[0];
    Array out = make<float>(u, shape_of(channels, to));
    u.queue().launch(Warp{image.data<float>(4), from, matrix_of(matrix), field_data(u), to, int(channels),
                          out.data<float>(4)},
                     to.volume());
    return out;
}

Array warp_valid(std::array<std::size_t, 3> shape, const In<double, 2>& matrix, const Array& u,
                 const std::optional<Array>& moving_weight, const std::optional<Array>& fixed_weight) {
    require_grid(shape, "the moving grid");
    const Extent to = u.extent(), from{{int(shape[0]), int(shape[1]), int(shape[2])}};
    if (moving_weight)
        require_same(moving_weight->extent(), from, "the weights of the moving image do not fit it");
    if (fixed_weight)
        require_same(fixed_weight->extent(), to, "the weights of the fixed image do not fit it");
    Array out = make<float>(u, shape_of(to));
    u.queue().launch(Valid{from, matrix_of(matrix), field_data(u), to,
                           moving_weight ? moving_weight->data<float>(3) : nullptr,
                           fixed_weight ? fixed_weight->data<float>(3) : nullptr, out.data<float>(3)},
                     to.volume());
    return out;
}

Array warp_nearest(const Array& labels, const In<double, 2>& matrix, const Array& u, std::int32_t fill) {
    const Extent to = u.extent(), from = labels.extent();
    Array out = make<std::int32_t>(u, shape_of(to));
    u.queue().launch(Nearest{labels.data<std::int32_t>(3), from, matrix_of(matrix), field_data(u), to, fill,
                             out.data<std::int32_t>(3)},
                     to.volume());
    return out;
}

Array compose(const Array& u, const Array& d) {
    require_same(u.extent(), d.extent(), "u and d must have one shape");
    Array out = make<float>(u, u.shape());
    u.queue().launch(Compose{field_data(u), field_data(d), u.extent(), out.data<float>(4)},
                     u.extent().volume());
    return out;
}

Array resample_field(const Array& u, std::array<std::size_t, 3> shape, std::array<double, 3> scale,
                     std::array<double, 3> offset, std::array<double, 3> size) {
    require_grid(shape, "the grid of the result");
    for (const auto* values : {&scale, &offset, &size})
        require_finite(*values, "scale, offset, size must be finite");
    Resample body{field_data(u), u.extent(), {{int(shape[0]), int(shape[1]), int(shape[2])}}, {}, {}, {},
                  nullptr};
    for (int a = 0; a < 3; ++a) {
        body.scale[a] = scale[a];
        body.offset[a] = offset[a];
        body.size[a] = float(size[a]);
    }
    Array out = make<float>(u, shape_of(3, body.to));
    body.out = out.data<float>(4);
    u.queue().launch(body, body.to.volume());
    return out;
}

}  // namespace

void register_fields(nb::module_& m) {
    using namespace nb::literals;
    m.def("warp", &warp, "image"_a, "matrix"_a, "u"_a,
          "Channels (C, ...) of an image pulled through matrix ∘ (id + u), beyond its grid its border.");
    m.def("warp_valid", &warp_valid, "shape"_a, "matrix"_a, "u"_a, "moving_weight"_a.none(),
          "fixed_weight"_a.none(),
          "Weight of each voxel: 1 inside the moving grid, times the weights of both masks.");
    m.def("warp_nearest", &warp_nearest, "labels"_a, "matrix"_a, "u"_a, "fill"_a,
          "Nearest label of each voxel.");
    m.def("compose", &compose, "u"_a, "d"_a, "u ∘ (id + d).");
    m.def("resample_field", &resample_field, "u"_a, "shape"_a, "scale"_a, "offset"_a, "size"_a,
          "A field at scale · x + offset, its components multiplied by size.");
}

}  // namespace regweave::gpu
