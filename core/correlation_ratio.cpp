// Gauss–Newton equations of the affine fit: the moved image less its mean among voxels of one fixed bin.
//
// A column of the equations is a derivative of the moved image times a coordinate (x, y, z or 1) of the
// voxel. Along a row x and y stand still, so sums of powers of z suffice for it.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "interpolate.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;
constexpr int kColumns = 12;
constexpr int kMostBins = 1024;

// Sums over the voxels of a plane, before the means of the bins are taken off.
struct Sums {
    double products[kColumns][kColumns] = {};  // the upper half of the blocks of derivatives
    double slope[kColumns] = {};
    std::vector<double> columns, weight, residual;  // of each bin

    explicit Sums(std::size_t bins) : columns(kColumns * bins, 0.0), weight(bins, 0.0), residual(bins, 0.0) {}

    void add(const Sums& other) {
        for (int a = 0; a < kColumns; ++a) {
            slope[a] += other.slope[a];
            for (int b = 0; b < kColumns; ++b) products[a][b] += other.products[a][b];
        }
        for (std::size_t i = 0; i < columns.size(); ++i) columns[i] += other.columns[i];
        for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += other.weight[i];
        for (std::size_t i = 0; i < residual.size(); ++i) residual[i] += other.residual[i];
    }
};

struct Row {
    const float* g[3];
    const std::int32_t* bins;
    const double *weight, *residual, *z;
    std::size_t n;
};

// Σ w g_a g_b z^p and Σ w r g_a z^p of a row, spread over the coordinates.
void add_row(const Row& row, double x, double y, Sums& sums) {
    double pairs[3][3][3] = {}, slopes[3][2] = {};
    for (std::size_t k = 0; k < row.n; ++k) {
        const double w = row.weight[k], z = row.z[k], wr = w * row.residual[k];
        for (int a = 0; a < 3; ++a) {
            const double here = row.g[a][k], weighed = w * here;
            slopes[a][0] += wr * here;
            slopes[a][1] += wr * here * z;
            for (int b = a; b < 3; ++b) {
                const double product = weighed * row.g[b][k];
                pairs[a][b][0] += product;
                pairs[a][b][1] += product * z;
                pairs[a][b][2] += product * z * z;
            }
        }
    }
    for (int a = 0; a < 3; ++a) {
        const double slope[4] = {x * slopes[a][0], y * slopes[a][0], slopes[a][1], slopes[a][0]};
        for (int p = 0; p < 4; ++p) sums.slope[4 * a + p] += slope[p];
        for (int b = a; b < 3; ++b) {
            const double *s = pairs[a][b], c[4] = {x, y, 0.0, 1.0};
            for (int p = 0; p < 4; ++p)
                for (int q = 0; q < 4; ++q) {
                    const double factor = (p == 2 ? 1.0 : c[p]) * (q == 2 ? 1.0 : c[q]);
                    sums.products[4 * a + p][4 * b + q] += factor * s[(p == 2) + (q == 2)];
                }
        }
    }
}

void add_bins(const Row& row, double x, double y, Sums& sums) {
    const std::int32_t last = std::int32_t(sums.weight.size()) - 1;  // numbers beyond it count as the last
    for (std::size_t k = 0; k < row.n; ++k) {
        const std::size_t bin = std::size_t(std::clamp(row.bins[k], 0, last));
        const double w = row.weight[k];
        double* column = &sums.columns[kColumns * bin];
        sums.weight[bin] += w;
        sums.residual[bin] += w * row.residual[k];
        for (int a = 0; a < 3; ++a) {
            const double g = w * row.g[a][k];
            column[4 * a] += g * x;
            column[4 * a + 1] += g * y;
            column[4 * a + 2] += g * row.z[k];
            column[4 * a + 3] += g;
        }
    }
}

// Σ w (c − mean of the bin)(d − mean of the bin) = Σ w c d − Σ over bins of their sums' product over weight.
void take_means_off(Sums& sums) {
    for (int a = 0; a < kColumns; ++a)
        for (int b = 0; b < a; ++b)
            if (a / 4 > b / 4) sums.products[a][b] = sums.products[b][a];
    for (std::size_t bin = 0; bin < sums.weight.size(); ++bin) {
        const double w = sums.weight[bin], *c = &sums.columns[kColumns * bin];
        if (w < 1e-9) continue;
        for (int a = 0; a < kColumns; ++a) {
            sums.slope[a] -= c[a] / w * sums.residual[bin];
            for (int b = 0; b < kColumns; ++b) sums.products[a][b] -= c[a] / w * c[b];
        }
    }
}

std::pair<Out<double>, Out<double>> normal_equations(In<float, 4> gradient, In<double, 2> matrix,
                                                     In<std::int32_t, 3> bins, In<double, 3> weight,
                                                     In<double, 3> residual, int n_bins) {
    const Shape n = require_volume(bins, "the bins"), moving = require_volume(gradient, "the gradient");
    require(gradient.shape(0) == 3, "a gradient has three components");
    require(matrix.shape(0) == 3 && matrix.shape(1) == 4, "matrix must have shape (3, 4)");
    require_finite(matrix.data(), 12, "matrix must be finite");
    require(n_bins >= 1 && n_bins <= kMostBins, "there must be 1 to 1024 bins");
    for (int a = 0; a < 3; ++a)
        require(weight.shape(a) == n[a] && residual.shape(a) == n[a],
                "bins, weights and residuals must lie on one grid");
    const std::size_t nz = n[2], volume = moving[0] * moving[1] * moving[2];
    const Sampler sampler(moving[0], moving[1], moving[2]);
    const double half = double(std::max({n[0], n[1], n[2]})) / 2.0;
    auto centred = [&](std::size_t index, int axis) {
        return (double(index) - (double(n[axis]) - 1.0) / 2.0) / half;
    };
    NewArray<double, 2> products({kColumns, kColumns});
    NewArray<double, 1> slope({kColumns});
    {
        nb::gil_scoped_release nogil;
        std::vector<double> z(nz);
        for (std::size_t k = 0; k < nz; ++k) z[k] = centred(k, 2);
        std::vector<Sums> planes(n[0], Sums(n_bins));
        parallel_for(int(n[0]), [&](int i) {
            RowPositions at(nz);
            RowCells cells(nz);
            std::vector<float> g(3 * nz);
            for (std::size_t j = 0; j < n[1]; ++j) {
                const double* m = matrix.data();
                for (int a = 0; a < 3; ++a, m += 4)
                    for (std::size_t k = 0; k < nz; ++k)
                        at.axis[a][k] = m[0] * double(i) + m[1] * double(j) + m[2] * double(k) + m[3];
                sampler.locate(at, cells);
                for (int a = 0; a < 3; ++a) sampler.sample(gradient.data() + a * volume, cells, &g[a * nz]);
                const std::size_t first = (i * n[1] + j) * nz;
                const Row row{{&g[0], &g[nz], &g[2 * nz]},
                              bins.data() + first,
                              weight.data() + first,
                              residual.data() + first,
                              z.data(),
                              nz};
                add_row(row, centred(i, 0), centred(j, 1), planes[i]);
                add_bins(row, centred(i, 0), centred(j, 1), planes[i]);
            }
        });
        for (std::size_t i = 1; i < n[0]; ++i) planes[0].add(planes[i]);
        take_means_off(planes[0]);
        std::copy_n(&planes[0].products[0][0], kColumns * kColumns, products.data.get());
        std::copy_n(planes[0].slope, kColumns, slope.data.get());
    }
    return {products.release(), slope.release()};
}

}  // namespace

void register_correlation_ratio(nb::module_& m) {
    m.def(
        "normal_equations", &normal_equations, nb::arg("gradient"), nb::arg("matrix"), nb::arg("bins"),
        nb::arg("weight"), nb::arg("residual"), nb::arg("n_bins"),
        "Matrix (12, 12) and right-hand side (12,) of the change of the moved image with an affine map, "
        "each voxel less the weighted mean of its bin; coordinates are centred, the longest axis from -1 to "
        "1.");
}
