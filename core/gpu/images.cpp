// Views of images and the features of metrics on a GPU.
#include <nanobind/stl/optional.h>

#include "features.hpp"
#include "seam.hpp"
#include "totals.hpp"
#include "views.hpp"

namespace regweave::gpu {

namespace {

Array view(const Array& image, std::array<int, 3> factors, std::optional<std::array<double, 2>> window,
           const std::optional<Array>& knots, const std::optional<Array>& values) {
    const Extent from = image.extent();
    BlockMean body{};
    body.image = image.data<float>(3);
    body.from = from;
    for (int a = 0; a < 3; ++a) {
        require(factors[a] >= 1 && factors[a] <= from.n[a], "factors must be 1 to the size of the image");
        body.factors[a] = factors[a];
        body.to.n[a] = (from.n[a] + factors[a] - 1) / factors[a];
    }
    if (window) {
        body.windowed = true;
        body.low = float((*window)[0]);
        body.scale = float(1.0 / ((*window)[1] - (*window)[0]));
    }
    if (knots) {
        require(window && values && knots->shape() == values->shape() && knots->size() >= 1,
                "knots come with as many values, and with a window");
        body.knots = knots->data<double>(1);
        body.values = values->data<double>(1);
        body.n_knots = int(knots->size());
    }
    Array out = make<float>(
        image, {1, std::size_t(body.to.n[0]), std::size_t(body.to.n[1]), std::size_t(body.to.n[2])});
    body.out = out.data<float>(4);
    image.queue().launch(body, body.to.volume());
    return out;
}

// The Gaussian as SciPy cuts it.
Array smoothed(const Array& image, double sigma) {
    require(image.shape()[0] == 1, "features are made of one channel");
    require(std::isfinite(sigma) && sigma >= 0 && sigma <= 64, "sigma must be 0 to 64");
    if (sigma <= 1e-15) return image;
    std::vector<double> side;
    double sum = 0;
    for (int d = 0; d <= int(2.0 * sigma + 0.5); ++d) {
        side.push_back(std::exp(-0.5 / (sigma * sigma) * d * d));
        sum += d ? 2 * side.back() : side.back();
    }
    for (double& w : side) w /= sum;
    return gaussian(image, {side, side, side});
}

Array gradient_magnitude(const Array& image, double sigma) {
    Array smooth = smoothed(image, sigma), out = make<float>(image, image.shape());
    image.queue().launch(GradientMagnitude{smooth.data<float>(4), image.extent(), out.data<float>(4)},
                         image.extent().volume());
    return out;
}

Array normalised_gradient(const Array& image, double sigma, double edge) {
    Array smooth = smoothed(image, sigma), length = make<float>(image, image.shape());
    require(image.shape()[0] == 1, "features are made of one channel");
    const Extent e = image.extent();
    Array out = make<float>(image, {3, image.shape()[1], image.shape()[2], image.shape()[3]});
    image.queue().launch(GradientMagnitude{smooth.data<float>(4), e, length.data<float>(4)}, e.volume());
    const Array sum = row_sums(image, length.data<float>(4), 1, e.volume());
    image.queue().launch(
        NormalisedGradient{smooth.data<float>(4), e, float(edge), sum.data<double>(1), out.data<float>(4)},
        e.volume());
    return out;
}

}  // namespace

void register_images(nb::module_& m) {
    using namespace nb::literals;
    m.def("view", &view, "image"_a, "factors"_a, "window"_a.none(), "knots"_a.none(), "values"_a.none(),
          "An image (X, Y, Z) in a window, through a broken line, shrunken: (1, X, Y, Z).");
    m.def("gradient_magnitude", &gradient_magnitude, "image"_a, "sigma"_a,
          "Length of the gradient, (1, X, Y, Z).");
    m.def("normalised_gradient", &normalised_gradient, "image"_a, "sigma"_a, "edge"_a,
          "Gradient over its length and the noise, (3, X, Y, Z).");
}

}  // namespace regweave::gpu
