// Intensities of images, voxel by voxel or block by block: windows, tables, means of blocks.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;

// out = op(in) for each plane: op(in, out, n).
template <class Op>
Out<float> by_plane(const In<float, 3>& image, const Op& op) {
    const Shape n = require_volume(image, "the image");
    NewArray<float, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        const std::size_t plane = n[1] * n[2];
        parallel_for(int(n[0]),
                     [&](int i) { op(image.data() + i * plane, out.data.get() + i * plane, plane); });
    }
    return out.release();
}

Out<float> window(In<float, 3> image, double low, double high) {
    require(std::isfinite(low) && std::isfinite(high) && low < high, "a window must be finite and not empty");
    const float first = float(low), scale = float(1.0 / (high - low));
    return by_plane(image, [=](const float* in, float* __restrict out, std::size_t n) {
        for (std::size_t v = 0; v < n; ++v) {
            const float value = (in[v] - first) * scale;
            out[v] = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;  // NaN stays
        }
    });
}

// Linear between knots that ascend, constant beyond them.
Out<float> lookup(In<float, 3> image, In<double, 1> knots, In<double, 1> values) {
    const std::size_t n_knots = knots.shape(0);
    require(n_knots >= 1 && n_knots <= kMostVoxels && values.shape(0) == n_knots,
            "a table needs as many values as knots");
    require_finite(knots.data(), n_knots, "knots must be finite");
    for (std::size_t i = 1; i < n_knots; ++i) require(knots(i) > knots(i - 1), "knots must ascend");
    const double *x = knots.data(), *y = values.data();
    return by_plane(image, [=](const float* in, float* out, std::size_t n) {
        for (std::size_t v = 0; v < n; ++v) {
            const double at = in[v];
            const std::size_t above = std::size_t(std::upper_bound(x, x + n_knots, at) - x);
            if (above == 0 || above == n_knots)
                out[v] = float(y[above == 0 ? 0 : n_knots - 1]);
            else
                out[v] = float(y[above - 1] +
                               (at - x[above - 1]) * ((y[above] - y[above - 1]) / (x[above] - x[above - 1])));
        }
    });
}

// The last block along an axis repeats the edge voxel.
Out<float> block_mean(In<float, 3> image, Shape factors) {
    const Shape n = require_volume(image, "the image");
    Shape blocks;
    for (int a = 0; a < 3; ++a) {
        require(factors[a] >= 1 && factors[a] <= kLongestAxis,
                "a block has at least one voxel along each axis");
        blocks[a] = (n[a] + factors[a] - 1) / factors[a];
    }
    const float scale = 1.0f / (float(factors[0]) * float(factors[1]) * float(factors[2]));
    NewArray<float, 3> out(blocks);
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(blocks[0]), [&](int plane) {
            std::vector<float> sums(n[2]);
            for (std::size_t row = plane * blocks[1]; row < (plane + 1) * blocks[1]; ++row) {
                const std::size_t i = plane * factors[0], j = row % blocks[1] * factors[1];
                std::fill(sums.begin(), sums.end(), 0.0f);
                for (std::size_t a = i; a < i + factors[0]; ++a)
                    for (std::size_t b = j; b < j + factors[1]; ++b) {
                        const float* line =
                            image.data() + (std::min(a, n[0] - 1) * n[1] + std::min(b, n[1] - 1)) * n[2];
                        for (std::size_t k = 0; k < n[2]; ++k) sums[k] += line[k];
                    }
                float* target = out.data.get() + row * blocks[2];
                for (std::size_t c = 0; c < blocks[2]; ++c) {
                    float sum = 0.0f;
                    for (std::size_t k = c * factors[2]; k < (c + 1) * factors[2]; ++k)
                        sum += sums[std::min(k, n[2] - 1)];
                    target[c] = sum * scale;
                }
            }
        });
    }
    return out.release();
}

}  // namespace

void register_intensity(nb::module_& m) {
    m.def("window", &window, nb::arg("image"), nb::arg("low"), nb::arg("high"),
          "Map low to 0 and high to 1, and cut what lies outside.");
    m.def("lookup", &lookup, nb::arg("image"), nb::arg("knots"), nb::arg("values"),
          "Values of a table at each voxel: linear between its knots, constant beyond.");
    m.def("block_mean", &block_mean, nb::arg("image"), nb::arg("factors"),
          "Mean of each block of voxels; blocks that reach over the border repeat the edge voxel.");
}
