// Bending of a displacement: its squared second differences, with their derivative.
//
// A displacement that is linear in space has none: unlike squared first differences, the cost neither shrinks
// a stretch nor draws a region without evidence to where its neighbours lie rather than to where they point.
#include <nanobind/stl/array.h>

#include <functional>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "simd.hpp"

namespace {

using namespace regweave;
using Force = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Factors = std::array<std::array<std::array<double, 3>, 3>, 3>;

// One component in one row: the terms that hold a voxel of the row, each seen from its first voxel.
struct Row {
    const float* r;
    float* __restrict out;
    float* __restrict square;
    float* __restrict step;
    int nz;

    // Second differences across rows that lie `up` apart; the row is number `at` of `size`.
    void across(std::ptrdiff_t up, int at, int size, float w) const {
        constexpr float share[3] = {1.0f, -2.0f, 1.0f};
        for (int s = 0; s < 3; ++s) {
            if (at - s < 0 || at - s + 2 >= size) continue;
            const float* b = r - s * up;
            const float weight = share[s] * w;
            for (int k = 0; k < nz; ++k) out[k] += weight * (b[k + 2 * up] - 2 * b[k + up] + b[k]);
            if (s == 0)
                for (int k = 0; k < nz; ++k) {
                    const float t = b[k + 2 * up] - 2 * b[k + up] + b[k];
                    square[k] += w * t * t;
                }
        }
    }

    void along(float w) const {
        for (int k = 0; k + 2 < nz; ++k) {
            const float t = r[k + 2] - 2 * r[k + 1] + r[k];
            step[k] = t;
            square[k] += w * t * t;
        }
        for (int k = 0; k + 2 < nz; ++k) out[k] += w * step[k];
        for (int k = 0; k + 2 < nz; ++k) out[k + 1] -= 2 * w * step[k];
        for (int k = 0; k + 2 < nz; ++k) out[k + 2] += w * step[k];
    }

    // Mixed differences across rows and planes; w counts both orders of the two axes.
    void mixed(std::ptrdiff_t x, std::ptrdiff_t y, int i, int nx, int j, int ny, float w) const {
        for (int si = 0; si < 2; ++si)
            for (int sj = 0; sj < 2; ++sj) {
                if (i - si < 0 || i - si + 1 >= nx || j - sj < 0 || j - sj + 1 >= ny) continue;
                const float* b = r - si * x - sj * y;
                const float weight = si == sj ? w : -w;
                for (int k = 0; k < nz; ++k) out[k] += weight * (b[k + x + y] - b[k + x] - b[k + y] + b[k]);
                if (si == 0 && sj == 0)
                    for (int k = 0; k < nz; ++k) {
                        const float t = b[k + x + y] - b[k + x] - b[k + y] + b[k];
                        square[k] += w * t * t;
                    }
            }
    }

    // Mixed differences along the row and across rows that lie `up` apart.
    void mixed_along(std::ptrdiff_t up, int at, int size, float w) const {
        for (int s = 0; s < 2; ++s) {
            if (at - s < 0 || at - s + 1 >= size) continue;
            const float* b = r - s * up;
            const float weight = s == 0 ? w : -w;
            for (int k = 0; k + 1 < nz; ++k) step[k] = (b[k + 1 + up] - b[k + 1]) - (b[k + up] - b[k]);
            for (int k = 0; k + 1 < nz; ++k) out[k] += weight * step[k];
            for (int k = 0; k + 1 < nz; ++k) out[k + 1] -= weight * step[k];
            if (s == 0)
                for (int k = 0; k + 1 < nz; ++k) square[k] += w * step[k] * step[k];
        }
    }
};

void require_bending(const In<float, 4>& u, const Force& force, const Factors& factor) {
    require_volume(u, "u");
    require(u.shape(0) == 3, "u must have shape (3, X, Y, Z)");
    for (int a = 0; a < 4; ++a) require(u.shape(a) == force.shape(a), "u and force must lie on one grid");
    for (const auto& matrix : factor)
        for (const auto& row : matrix) require_finite(row, "factors must be finite");
    const std::less_equal<const float*> before;
    require(before(force.data() + force.size(), u.data()) || before(u.data() + u.size(), force.data()),
            "force must not share memory with an input");
}

// ½ Σ over components and pairs of axes of squared second differences times factor[component][axis][axis],
// which is symmetric, and its derivative by u; the ends are free.
double bending_force(In<float, 4> u, Force force, Factors factor) {
    require_bending(u, force, factor);
    const int nx = int(u.shape(1)), ny = int(u.shape(2)), nz = int(u.shape(3));
    const std::ptrdiff_t plane = std::ptrdiff_t(ny) * nz, volume = plane * nx;
    std::vector<double> parts(3 * std::size_t(nx));
    nb::gil_scoped_release nogil;
    parallel_for(3 * nx, [&](int task) {
        const int c = task / nx, i = task % nx;
        const auto w = [&](int a, int b) { return float((a == b ? 1 : 2) * factor[c][a][b]); };
        std::vector<float> square(nz), step(nz);
        double energy = 0;
        for (int j = 0; j < ny; ++j) {
            const std::ptrdiff_t at = c * volume + i * plane + std::ptrdiff_t(j) * nz;
            std::fill(square.begin(), square.end(), 0.0f);
            const Row row{u.data() + at, force.data() + at, square.data(), step.data(), nz};
            row.across(plane, i, nx, w(0, 0));
            row.across(nz, j, ny, w(1, 1));
            row.along(w(2, 2));
            row.mixed(plane, nz, i, nx, j, ny, w(0, 1));
            row.mixed_along(plane, i, nx, w(0, 2));
            row.mixed_along(nz, j, ny, w(1, 2));
            for (int k = 0; k < nz; ++k) energy += square[k];
        }
        parts[task] = 0.5 * energy;
    });
    double total = 0;
    for (double p : parts) total += p;
    return total;
}

}  // namespace

void register_bending(nb::module_& m) {
    m.def("bending_force", &bending_force, nb::arg("u"), nb::arg("force"), nb::arg("factor"),
          "Half the squared second differences of u times factor[component][axis][axis]; adds its derivative "
          "to "
          "force.");
}
