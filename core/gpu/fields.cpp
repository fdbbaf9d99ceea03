// Warps and dense displacement fields on a GPU.
#include "seam.hpp"

namespace regweave::gpu {
namespace {

Array warp(const Array& image, const In<double, 2>& matrix, const Array& u) {
    const Extent to = u.extent(), from = image.extent();
    const std::size_t channels = image.shape()[0];
    Array out = make<float>(u, {channels, std::size_t(to.n[0]), std::size_t(to.n[1]), std::size_t(to.n[2])});
    u.queue().launch(Warp{image.data<float>(4), from, matrix_of(matrix), field_data(u), to, int(channels),
                          out.data<float>(4)},
                     to.volume());
    return out;
}

}  // namespace

void register_fields(nb::module_& m) {
    using namespace nb::literals;
    m.def("warp", &warp, "image"_a, "matrix"_a, "u"_a,
          "Channels (C, ...) of an image pulled through matrix ∘ (id + u), beyond its grid its border.");
}

}  // namespace regweave::gpu
