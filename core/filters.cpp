// Gaussian smoothing and gradients of images, by planes and rows; beyond the border the edge voxel repeats.
#include <nanobind/stl/array.h>

#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "local_sums.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;

Extent extent_of(const In<float, 3>& a) { return {int(a.shape(0)), int(a.shape(1)), int(a.shape(2))}; }

// Weights of the distances 0, 1, …, cut where they are further than that many standard deviations.
std::vector<float> gaussian_weights(double sigma, double truncate) {
    std::vector<double> w(std::size_t(truncate * sigma + 0.5) + 1);
    double total = 0;
    for (std::size_t d = 0; d < w.size(); ++d) {
        w[d] = sigma > 0 ? std::exp(-0.5 * double(d * d) / (sigma * sigma)) : 1.0;
        total += d ? 2 * w[d] : w[d];
    }
    std::vector<float> out;
    for (double v : w) out.push_back(float(v / total));
    return out;
}

// out[k] = w[0] line(0)[k] + Σ w[d] (line(d)[k] + line(-d)[k]).
template <class Line>
void weighted_lines(const std::vector<float>& w, const Line& line, std::size_t n, float* __restrict out) {
    const float* here = line(0);
    for (std::size_t k = 0; k < n; ++k) out[k] = w[0] * here[k];
    for (int d = 1; d < int(w.size()); ++d) {
        const float *below = line(-d), *above = line(d), weight = w[d];
        for (std::size_t k = 0; k < n; ++k) out[k] += weight * (below[k] + above[k]);
    }
}

// Along z and y inside each plane, then along x over planes.
void smooth(const float* in, float* out, float* between, Extent n,
            const std::array<std::vector<float>, 3>& w) {
    const int reach = int(w[2].size()) - 1;
    parallel_for(n.nx, [&](int i) {
        thread_local std::vector<float> row, plane;  // kept: fresh pages for each plane cost as much as it
        row.resize(n.nz + 2 * reach);
        plane.resize(n.plane());
        for (int j = 0; j < n.ny; ++j) {
            const float* p = in + n.row(i, j);
            std::copy(p, p + n.nz, row.begin() + reach);
            std::fill_n(row.begin(), reach, p[0]);
            std::fill_n(row.end() - reach, reach, p[n.nz - 1]);
            weighted_lines(w[2], [&](int d) { return &row[reach + d]; }, n.nz, &plane[std::size_t(j) * n.nz]);
        }
        auto line = [&](int j) { return &plane[std::size_t(std::clamp(j, 0, n.ny - 1)) * n.nz]; };
        for (int j = 0; j < n.ny; ++j)
            weighted_lines(w[1], [&](int d) { return line(j + d); }, n.nz, between + n.row(i, j));
    });
    parallel_for(n.nx, [&](int i) {
        for (int j = 0; j < n.ny; ++j)
            weighted_lines(
                w[0], [&](int d) { return between + n.row(std::clamp(i + d, 0, n.nx - 1), j); }, n.nz,
                out + n.row(i, j));
    });
}

Out<float> gaussian(In<float, 4> images, std::array<double, 3> sigma, double truncate) {
    const auto shape = require_volume(images, "the images");
    const Extent n{int(shape[0]), int(shape[1]), int(shape[2])};
    require(std::isfinite(truncate) && truncate > 0, "the kernel must be cut at a positive distance");
    std::array<std::vector<float>, 3> weights;
    for (int a = 0; a < 3; ++a) {
        require(sigma[a] >= 0 && sigma[a] * truncate <= 1024, "the kernel must reach 0 to 1024 voxels");
        weights[a] = gaussian_weights(sigma[a], truncate);
    }
    NewArray<float, 4> out({images.shape(0), shape[0], shape[1], shape[2]});
    {
        nb::gil_scoped_release nogil;
        Buffer<float> between(n.volume());
        for (std::size_t c = 0; c < images.shape(0); ++c)
            smooth(images.data() + c * n.volume(), out.data.get() + c * n.volume(), between.data(), n,
                   weights);
    }
    return out.release();
}

// Derivatives of row (i, j) along the three axes: central differences, one-sided at the border.
void gradient_row(const float* image, Extent n, int i, int j, float* __restrict x, float* __restrict y,
                  float* __restrict z) {
    auto difference = [&](const float* above, const float* below, int distance, float* __restrict out) {
        const float scale = distance > 0 ? 1.0f / float(distance) : 0.0f;
        for (int k = 0; k < n.nz; ++k) out[k] = (above[k] - below[k]) * scale;
    };
    const int up = std::min(i + 1, n.nx - 1), down = std::max(i - 1, 0);
    const int right = std::min(j + 1, n.ny - 1), left = std::max(j - 1, 0), last = n.nz - 1;
    const float* here = image + n.row(i, j);
    difference(image + n.row(up, j), image + n.row(down, j), up - down, x);
    difference(image + n.row(i, right), image + n.row(i, left), right - left, y);
    for (int k = 1; k < last; ++k) z[k] = (here[k + 1] - here[k - 1]) * 0.5f;
    z[0] = last > 0 ? here[1] - here[0] : 0.0f;
    z[last] = last > 0 ? here[last] - here[last - 1] : 0.0f;
}

Out<float> gradient_magnitude(In<float, 3> image) {
    require_volume(image, "the image");
    const Extent n = extent_of(image);
    NewArray<float, 4> out({1, image.shape(0), image.shape(1), image.shape(2)});
    {
        nb::gil_scoped_release nogil;
        parallel_for(n.nx, [&](int i) {
            std::vector<float> g(3 * std::size_t(n.nz));
            float *x = g.data(), *y = x + n.nz, *z = y + n.nz;
            for (int j = 0; j < n.ny; ++j) {
                gradient_row(image.data(), n, i, j, x, y, z);
                float* __restrict target = out.data.get() + n.row(i, j);
                for (int k = 0; k < n.nz; ++k) target[k] = std::sqrt(x[k] * x[k] + y[k] * y[k] + z[k] * z[k]);
            }
        });
    }
    return out.release();
}

// ∇I / √(|∇I|² + ε²), ε being a multiple of the mean |∇I|.
Out<float> gradient_direction(In<float, 3> image, double edge) {
    require_volume(image, "the image");
    require(std::isfinite(edge) && edge >= 0, "the edge must be 0 or more");
    const Extent n = extent_of(image);
    NewArray<float, 4> out({3, image.shape(0), image.shape(1), image.shape(2)});
    float* g = out.data.get();
    {
        nb::gil_scoped_release nogil;
        std::vector<double> parts(n.nx);
        parallel_for(n.nx, [&](int i) {
            std::vector<float> length(n.nz);
            for (int j = 0; j < n.ny; ++j) {
                float *x = g + n.row(i, j), *y = x + n.volume(), *z = y + n.volume();
                gradient_row(image.data(), n, i, j, x, y, z);
                for (int k = 0; k < n.nz; ++k) length[k] = std::sqrt(x[k] * x[k] + y[k] * y[k] + z[k] * z[k]);
                parts[i] += row_sum(length.data(), n.nz);
            }
        });
        double total = 0;
        for (double part : parts) total += part;
        const float epsilon = float(edge * total / double(n.volume())) + 1e-6f, square = epsilon * epsilon;
        parallel_for(n.nx, [&](int i) {
            float* __restrict x = g + n.plane() * i, * __restrict y = x + n.volume(), * __restrict z = y + n.volume();
            for (std::size_t v = 0; v < n.plane(); ++v) {
                const float scale = 1.0f / std::sqrt(x[v] * x[v] + y[v] * y[v] + z[v] * z[v] + square);
                x[v] *= scale;
                y[v] *= scale;
                z[v] *= scale;
            }
        });
    }
    return out.release();
}

}  // namespace

void register_filters(nb::module_& m) {
    m.def(
        "gaussian", &gaussian, nb::arg("images"), nb::arg("sigma"), nb::arg("truncate"),
        "Smooth images (C, X, Y, Z) by a Gaussian of sigma voxels along each axis, cut at truncate sigmas.");
    m.def("gradient_magnitude", &gradient_magnitude, nb::arg("image"),
          "Length of the gradient, (1, X, Y, Z); central differences, one-sided at borders.");
    m.def("gradient_direction", &gradient_direction, nb::arg("image"), nb::arg("edge"),
          "Gradient over the root of its square plus that of edge times its mean length, (3, X, Y, Z).");
}
