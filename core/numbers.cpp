// Numbers of whole images: histograms, the inside of a body, spreads, where points end there and back.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "interpolate.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;

// Voxels between each two edges; the last bin holds its upper edge too, and what lies outside is left out.
Out<std::int64_t> histogram(In<float, 3> image, In<double, 1> edges) {
    const Shape n = require_volume(image, "the image");
    require(edges.shape(0) >= 2 && edges.shape(0) <= 65537, "a histogram has 1 to 65536 bins");
    const std::size_t bins = edges.shape(0) - 1, plane = n[1] * n[2];
    require_finite(edges.data(), bins + 1, "edges must be finite");
    for (std::size_t b = 0; b < bins; ++b) require(edges(b) < edges(b + 1), "edges must ascend");
    const double *edge = edges.data(), low = edge[0], high = edge[bins], scale = double(bins) / (high - low);
    NewArray<std::int64_t, 1> out({bins});
    {
        nb::gil_scoped_release nogil;
        std::vector<std::uint32_t> parts(n[0] * bins, 0);
        parallel_for(int(n[0]), [&](int i) {
            std::uint32_t* counts = &parts[i * bins];
            const float* in = image.data() + i * plane;
            for (std::size_t v = 0; v < plane; ++v) {
                const double value = in[v];
                if (!(value >= low && value <= high)) continue;
                std::size_t b = std::min(std::size_t((value - low) * scale), bins - 1);
                while (b > 0 && value < edge[b])
                    --b;  // bins of equal width but for the rounding of the edges
                while (b + 1 < bins && value >= edge[b + 1]) ++b;
                ++counts[b];
            }
        });
        std::fill_n(out.data.get(), bins, 0);
        for (std::size_t i = 0; i < n[0]; ++i)
            for (std::size_t b = 0; b < bins; ++b) out.data[b] += parts[i * bins + b];
    }
    return out.release();
}

// Sums of the values above a level over the planes across each axis.
std::tuple<Out<double>, Out<double>, Out<double>> profiles(In<float, 3> image, float level) {
    const Shape n = require_volume(image, "the image");
    NewArray<double, 1> x({n[0]}), y({n[1]}), z({n[2]});
    {
        nb::gil_scoped_release nogil;
        std::vector<double> along_y(n[0] * n[1]), along_z(n[0] * n[2], 0.0);
        parallel_for(int(n[0]), [&](int i) {
            double plane = 0;
            for (std::size_t j = 0; j < n[1]; ++j) {
                const float* row = image.data() + (i * n[1] + j) * n[2];
                double* __restrict sums = &along_z[i * n[2]];
                double sum = 0;
                for (std::size_t k = 0; k < n[2]; ++k) {
                    const double value = row[k] > level ? row[k] : 0.0;
                    sums[k] += value;
                    sum += value;
                }
                along_y[i * n[1] + j] = sum;
                plane += sum;
            }
            x.data[i] = plane;
        });
        std::fill_n(y.data.get(), n[1], 0.0);
        std::fill_n(z.data.get(), n[2], 0.0);
        for (std::size_t i = 0; i < n[0]; ++i) {
            for (std::size_t j = 0; j < n[1]; ++j) y.data[j] += along_y[i * n[1] + j];
            for (std::size_t k = 0; k < n[2]; ++k) z.data[k] += along_z[i * n[2] + k];
        }
    }
    return {x.release(), y.release(), z.release()};
}

// First and last voxel of the mask along an axis; a line without one ends before it begins.
struct Ends {
    std::vector<std::int32_t> first, last;

    explicit Ends(std::size_t lines) : first(lines, INT32_MAX), last(lines, -1) {}

    void add(std::size_t line, std::size_t count, const std::uint8_t* mask, std::int32_t at) {
        std::int32_t* __restrict f = &first[line];
        std::int32_t* __restrict l = &last[line];
        for (std::size_t k = 0; k < count; ++k) {
            f[k] = mask[k] && f[k] > at ? at : f[k];
            l[k] = mask[k] ? at : l[k];  // voxels come in ascending order
        }
    }
};

// A voxel of the mask, or between two of it along enough axes.
Out<std::uint8_t> enclosed(In<std::uint8_t, 3> mask, int axes) {
    const Shape n = require_volume(mask, "the mask");
    require(axes >= 1 && axes <= 3, "a voxel lies between others along 1 to 3 axes");
    const std::size_t nz = n[2], plane = n[1] * nz;
    NewArray<std::uint8_t, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        Ends x(plane);
        parallel_for(int(n[1]), [&](int j) {
            for (std::size_t i = 0; i < n[0]; ++i)
                x.add(j * nz, nz, mask.data() + i * plane + j * nz, std::int32_t(i));
        });
        parallel_for(int(n[0]), [&](int i) {
            const std::uint8_t* in = mask.data() + i * plane;
            Ends y(nz);
            for (std::size_t j = 0; j < n[1]; ++j) y.add(0, nz, in + j * nz, std::int32_t(j));
            for (std::size_t j = 0; j < n[1]; ++j) {
                const std::uint8_t* row = in + j * nz;
                const std::int32_t *fx = &x.first[j * nz], *lx = &x.last[j * nz];
                std::size_t first = 0, last = nz;
                while (first < nz && !row[first]) ++first;
                while (last > first && !row[last - 1]) --last;
                std::uint8_t* __restrict target = out.data.get() + i * plane + j * nz;
                for (std::size_t k = 0; k < nz; ++k) {
                    const int between = (fx[k] <= i && lx[k] >= i) +
                                        (y.first[k] <= std::int32_t(j) && y.last[k] >= std::int32_t(j)) +
                                        (k >= first && k < last);
                    target[k] = row[k] != 0 || between >= axes;
                }
            }
        });
    }
    return out.release();
}

// Mean and standard deviation of log(value + shift), values below the least taken as that.
std::pair<double, double> log_spread(In<float, 1> values, double shift, double least, double most) {
    const std::size_t n = values.shape(0), block = 1 << 16, blocks = (n + block - 1) / block;
    require(n >= 1 && blocks <= kMostVoxels, "there must be values");
    require(least > 0 && least <= most && std::isfinite(most) && std::isfinite(shift),
            "the limits must be positive and finite");
    std::vector<double> sums(blocks), squares(blocks);
    const double about = std::log(std::min(std::max(1.0 + shift, least), most));  // near the mean
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(blocks), [&](int b) {
            double sum = 0, square = 0;
            for (std::size_t v = b * block; v < std::min(n, (b + 1) * block); ++v) {
                const double x = double(values.data()[v]) + shift;
                const double d = std::log(x < least ? least : x > most ? most : x) - about;  // NaN stays
                sum += d;
                square += d * d;
            }
            sums[b] = sum;
            squares[b] = square;
        });
    }
    double sum = 0, square = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        sum += sums[b];
        square += squares[b];
    }
    const double mean = sum / double(n), variance = square / double(n) - mean * mean;
    return {about + mean, std::sqrt(variance < 0 ? 0.0 : variance)};
}

using Affine = std::array<std::array<double, 4>, 3>;

void apply(const Affine& m, const double* x, double* y) {
    for (int a = 0; a < 3; ++a) y[a] = m[a][0] * x[0] + m[a][1] * x[1] + m[a][2] * x[2] + m[a][3];
}

// Fixed p goes to q = there · (p + u) and returns to back · (q + v(q)).
Out<float> round_trip(In<float, 4> u, In<float, 4> v, Affine place, Affine there, Affine to_voxel,
                      Affine back) {
    const Shape n = require_volume(u, "u"), moving = require_volume(v, "v");
    require(u.shape(0) == 3 && v.shape(0) == 3, "fields must have shape (3, X, Y, Z)");
    for (const Affine* map : {&place, &there, &to_voxel, &back})
        for (const auto& row : *map) require_finite(row, "maps must be finite");
    const std::size_t nz = n[2], volume = n[0] * n[1] * nz, far = moving[0] * moving[1] * moving[2];
    const Sampler sampler(moving[0], moving[1], moving[2]);
    NewArray<float, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(n[0]), [&](int i) {
            RowPositions at(nz);
            RowCells cells(nz);
            std::vector<std::uint8_t> inside(nz);
            std::vector<double> starts(3 * nz), images(3 * nz);
            std::vector<float> shift(3 * nz);
            for (std::size_t j = 0; j < n[1]; ++j) {
                const float* row = u.data() + (i * n[1] + j) * nz;
                float* target = out.data.get() + (i * n[1] + j) * nz;
                for (std::size_t k = 0; k < nz; ++k) {
                    const double voxel[3] = {double(i), double(j), double(k)};
                    double moved[3], position[3], *p = &starts[3 * k], *q = &images[3 * k];
                    apply(place, voxel, p);
                    for (int a = 0; a < 3; ++a) moved[a] = p[a] + row[a * volume + k];
                    apply(there, moved, q);
                    apply(to_voxel, q, position);
                    for (int a = 0; a < 3; ++a) at.axis[a][k] = position[a];
                }
                sampler.locate(at, cells);
                sampler.inside(at, inside.data());
                for (int a = 0; a < 3; ++a) sampler.sample(v.data() + a * far, cells, &shift[a * nz]);
                for (std::size_t k = 0; k < nz; ++k) {
                    double q[3], end[3], square = 0;
                    for (int a = 0; a < 3; ++a) q[a] = images[3 * k + a] + shift[a * nz + k];
                    apply(back, q, end);
                    for (int a = 0; a < 3; ++a)
                        square += (end[a] - starts[3 * k + a]) * (end[a] - starts[3 * k + a]);
                    target[k] = inside[k] ? float(std::sqrt(square)) : NAN;
                }
            }
        });
    }
    return out.release();
}

}  // namespace

void register_numbers(nb::module_& m) {
    m.def("histogram", &histogram, nb::arg("image"), nb::arg("edges"),
          "Voxels between each two of the ascending edges of bins of about equal width.");
    m.def("profiles", &profiles, nb::arg("image"), nb::arg("level"),
          "Sums of the values above a level in the planes across each of the three axes.");
    m.def("enclosed", &enclosed, nb::arg("mask"), nb::arg("axes"),
          "The mask with the voxels between two of it along that many axes.");
    m.def("log_spread", &log_spread, nb::arg("values"), nb::arg("shift"), nb::arg("least"), nb::arg("most"),
          "Mean and standard deviation of log(value + shift), cut to least and most before the logarithm.");
    m.def("round_trip", &round_trip, nb::arg("u"), nb::arg("v"), nb::arg("place"), nb::arg("there"),
          nb::arg("to_voxel"), nb::arg("back"),
          "Distance of back · (q + v(q)) from p, q = there · (p + u(p)); NaN where q lies outside v's grid.");
}
