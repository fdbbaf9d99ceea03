// Folds, votes of labels and smoothing on a GPU.
#include "deform.hpp"

#include "seam.hpp"
#include "smooth.hpp"
#include "totals.hpp"

namespace regweave::gpu {
namespace {

std::vector<std::size_t> volume_shape(const Extent& g) {
    return {std::size_t(g.n[0]), std::size_t(g.n[1]), std::size_t(g.n[2])};
}

Array warp_labels(const Array& labels, const In<double, 2>& matrix, const Array& u) {
    const Extent to = u.extent();
    const Array out = make<std::int32_t>(u, volume_shape(to));
    u.queue().launch(WarpVoted{labels.data<std::int32_t>(3), labels.extent(), matrix_of(matrix),
                               field_data(u), to, out.data<std::int32_t>(3)},
                     to.volume());
    return out;
}

Array jacobian(const Array& u) {
    const Extent grid = u.extent();
    const Array out = make<float>(u, volume_shape(grid));
    u.queue().launch(Determinant{field_data(u), grid, out.data<float>(3)}, grid.volume());
    return out;
}

float smallest(const Array& values) {
    return least_of(values, values.data<float>(int(values.shape().size())), Index(values.size()));
}

}  // namespace

// Each axis in turn by the weights of one side, (radius + 1,); an empty list leaves an axis as it is.
Array gaussian(const Array& image, const std::array<std::vector<double>, 3>& weights) {
    image.data<float>(4);
    const Extent grid = image.extent();
    Array now = image;
    for (int a = 0; a < 3; ++a) {
        if (weights[a].empty()) continue;
        const Array w = make<double>(image, {weights[a].size()}), out = make<float>(image, image.shape());
        image.queue().upload(w.raw(), weights[a].data(), w.bytes());
        image.queue().launch(AxisGaussian{now.data<float>(4), grid, a, int(weights[a].size()) - 1,
                                          int(image.shape()[0]), w.data<double>(1), out.data<float>(4)},
                             grid.volume());
        now = out;
    }
    return now;
}

void register_deform(nb::module_& m) {
    using namespace nb::literals;
    m.def("warp_labels", &warp_labels, "labels"_a, "matrix"_a, "u"_a,
          "Take the label with the largest sum of trilinear weights; 0 outside.");
    m.def("jacobian", &jacobian, "u"_a, "det(I + du/dx), central differences, one-sided at borders.");
    m.def("least", &smallest, "values"_a, nb::call_guard<nb::gil_scoped_release>(),
          "The smallest value, on the host.");
    m.def("gaussian", &gaussian, "image"_a, "weights"_a,
          "Smooth channels (C, X, Y, Z) along each axis by the weights of one side, the voxel itself first.");
}

}  // namespace regweave::gpu
