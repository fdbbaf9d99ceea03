// Costs compared voxel by voxel, with their derivative by a small displacement of the moved image.
//
// Moving the moved image m by δ changes it by ∇m · δ, so the force at a voxel is (∂cost / ∂m) ∇m. Every
// kernel adds its force to the given array (3, X, Y, Z) and returns its cost.
#include <nanobind/stl/array.h>

#include <cmath>
#include <functional>

#include "arrays.hpp"
#include "local_correlation.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Force = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

Extent extent_of(const In<float, 4>& a) { return {int(a.shape(1)), int(a.shape(2)), int(a.shape(3))}; }

// A force is added to in place while the inputs are read.
template <class Array>
void require_apart(const Force& force, const Array& input) {
    const std::less_equal<const float*> before;
    require(before(force.data() + force.size(), input.data()) ||
                before(input.data() + input.size(), force.data()),
            "force must not share memory with an input");
}

void require_same(const In<float, 4>& fixed, const In<float, 4>& moved, const In<float, 3>& weight,
                  const Force& force) {
    require_volume(fixed, "fixed");
    for (int a = 0; a < 4; ++a)
        require(fixed.shape(a) == moved.shape(a) && (a == 0 || fixed.shape(a) == weight.shape(a - 1)) &&
                    force.shape(a) == (a ? fixed.shape(a) : 3),
                "fixed, moved, weight and force must lie on one grid");
    require_apart(force, fixed);
    require_apart(force, moved);
    require_apart(force, weight);
}

void require_radius(int radius) {
    require(radius >= 0 && radius <= 1024, "the radius must be 0 to 1024 voxels");
}

// Adds slope · ∇m of row (i, j) to the force, central differences, one-sided at the border.
void add_force(const float* m, const float* __restrict slope, Extent n, int i, int j, float* force) {
    const std::size_t at = n.row(i, j);
    const int up = std::min(i + 1, n.nx - 1), down = std::max(i - 1, 0);
    const int right = std::min(j + 1, n.ny - 1), left = std::max(j - 1, 0), last = n.nz - 1;
    const float scale_x = up - down > 0 ? 1.0f / (up - down) : 0.0f;
    const float scale_y = right - left > 0 ? 1.0f / (right - left) : 0.0f;
    const float *mu = m + n.row(up, j), *md = m + n.row(down, j);
    const float *mr = m + n.row(i, right), *ml = m + n.row(i, left), *mm = m + at;
    float* __restrict x = force + at, * __restrict y = x + n.volume(), * __restrict z = y + n.volume();
    for (int k = 0; k < n.nz; ++k) x[k] += slope[k] * (mu[k] - md[k]) * scale_x;
    for (int k = 0; k < n.nz; ++k) y[k] += slope[k] * (mr[k] - ml[k]) * scale_y;
    for (int k = 1; k < last; ++k) z[k] += slope[k] * (mm[k + 1] - mm[k - 1]) * 0.5f;
    if (n.nz > 1) {
        z[0] += slope[0] * (mm[1] - mm[0]);
        z[last] += slope[last] * (mm[last] - mm[last - 1]);
    }
}

double in_order(const std::vector<double>& parts) {
    double total = 0;
    for (double p : parts) total += p;
    return total;
}

// Each row on its own: op(f, m, w, slope, cost) gets the first voxel of a row, channels being a volume apart,
// and writes ∂cost/∂m of channel c to slope + c · nz and the cost of each voxel to cost.
template <class Op>
double voxelwise(const In<float, 4>& fixed, const In<float, 4>& moved, const In<float, 3>& weight,
                 Force& force, const Op& op) {
    require_same(fixed, moved, weight, force);
    const Extent n = extent_of(fixed);
    const int C = int(fixed.shape(0));
    std::vector<double> parts(n.nx);
    nb::gil_scoped_release nogil;
    parallel_for(n.nx, [&](int i) {
        std::vector<float> slope(std::size_t(C) * n.nz), cost(n.nz);
        double total = 0;
        for (int j = 0; j < n.ny; ++j) {
            const std::size_t at = n.row(i, j);
            std::fill(cost.begin(), cost.end(), 0.0f);
            op(fixed.data() + at, moved.data() + at, weight.data() + at, slope.data(), cost.data());
            total += row_sum(cost.data(), n.nz);
            for (int c = 0; c < C; ++c)
                add_force(moved.data() + c * n.volume(), &slope[std::size_t(c) * n.nz], n, i, j,
                          force.data());
        }
        parts[i] = total;
    });
    return in_order(parts);
}

// Σ w · mean over channels of √(d² + ε²) − ε: an absolute difference with a slope at zero.
double absolute_force(In<float, 4> fixed, In<float, 4> moved, In<float, 3> weight, Force force,
                      float epsilon) {
    require(std::isfinite(epsilon) && epsilon > 0.0f, "epsilon must be positive");
    const int C = int(fixed.shape(0)), nz = int(fixed.shape(3));
    const std::size_t volume = fixed.shape(1) * fixed.shape(2) * fixed.shape(3);
    return voxelwise(
        fixed, moved, weight, force,
        [=](const float* f, const float* m, const float* w, float* __restrict slope, float* __restrict cost) {
            const float share = 1.0f / C, e2 = epsilon * epsilon;
            for (int c = 0; c < C; ++c, f += volume, m += volume, slope += nz)
                for (int k = 0; k < nz; ++k) {
                    const float d = m[k] - f[k], root = std::sqrt(d * d + e2), weighed = share * w[k];
                    slope[k] = weighed * d / root;
                    cost[k] += weighed * (root - epsilon);
                }
        });
}

// Σ w · ½ |ff' − mm'|² = Σ w · (½ (|f|⁴ + |m|⁴) − ⟨f, m⟩²).
double tensor_force(In<float, 4> fixed, In<float, 4> moved, In<float, 3> weight, Force force) {
    const int C = int(fixed.shape(0)), nz = int(fixed.shape(3));
    const std::size_t volume = fixed.shape(1) * fixed.shape(2) * fixed.shape(3);
    return voxelwise(
        fixed, moved, weight, force,
        [=](const float* f, const float* m, const float* w, float* __restrict slope, float* __restrict cost) {
            for (int k = 0; k < nz; ++k) {
                OuterProducts<float> products;
                for (int c = 0; c < C; ++c) products.add(f[c * volume + k], m[c * volume + k]);
                cost[k] = w[k] * products.difference();
                for (int c = 0; c < C; ++c)
                    slope[c * nz + k] =
                        2 * w[k] * (products.bb * m[c * volume + k] - products.dot * f[c * volume + k]);
            }
        });
}

double correlation_force(In<float, 4> fixed, In<float, 4> moved, In<float, 3> weight, Force force, int radius,
                         float floor, bool squared) {
    require_same(fixed, moved, weight, force);
    require(fixed.shape(0) == 1, "correlation takes one channel");
    require(std::isfinite(floor) && floor > 0.0f, "the floor of the variance must be positive");
    require_radius(radius);
    const Extent n = extent_of(fixed);
    nb::gil_scoped_release nogil;
    LocalCorrelation local(fixed.data(), moved.data(), weight.data(), n, radius, floor);
    const double cost = squared ? local.cost<true>() : local.cost<false>();
    local.derivative(
        [&](int i, int j, const float* slope) { add_force(moved.data(), slope, n, i, j, force.data()); });
    return cost;
}

// Σ |f|⁴ / Σ |f|²: the mean square of the force, each voxel weighted by its own.
double mean_square_force(In<float, 4> force) {
    require_volume(force, "force");
    require(force.shape(0) == 3, "force must have shape (3, X, Y, Z)");
    const Extent n = extent_of(force);
    std::vector<double> squares(n.nx), fourths(n.nx);
    {
        nb::gil_scoped_release nogil;
        parallel_for(n.nx, [&](int i) {
            const float *x = force.data() + n.plane() * i, *y = x + n.volume(), *z = y + n.volume();
            double sums[4] = {}, sums_of_squares[4] = {};  // additions that do not wait for each other
            for (std::size_t v = 0; v < n.plane(); ++v) {
                const double square = double(x[v]) * x[v] + double(y[v]) * y[v] + double(z[v]) * z[v];
                sums[v % 4] += square;
                sums_of_squares[v % 4] += square * square;
            }
            squares[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            fourths[i] =
                (sums_of_squares[0] + sums_of_squares[1]) + (sums_of_squares[2] + sums_of_squares[3]);
        });
    }
    return in_order(fourths) / std::max(in_order(squares), 1e-30);
}

void require_displacement(const In<float, 4>& u, const Force& force,
                          const std::array<std::array<double, 3>, 3>& factor) {
    require_volume(u, "u");
    require(u.shape(0) == 3, "u must have shape (3, X, Y, Z)");
    for (int a = 0; a < 4; ++a) require(u.shape(a) == force.shape(a), "u and force must lie on one grid");
    for (const auto& row : factor) require_finite(row, "factors must be finite");
    require_apart(force, u);
}

// ½ Σ over axes and components of squared forward differences times the given factor (component, axis) and
// its derivative by u: minus the Laplacian, with free ends.
double diffusion_force(In<float, 4> u, Force force, std::array<std::array<double, 3>, 3> factor) {
    require_displacement(u, force, factor);
    const Extent n = extent_of(u);
    std::vector<double> parts(3 * n.nx);
    nb::gil_scoped_release nogil;
    parallel_for(3 * n.nx, [&](int task) {
        const int c = task / n.nx, i = task % n.nx;
        const float* p = u.data() + c * n.volume() + n.plane() * i;
        float* g = force.data() + c * n.volume() + n.plane() * i;
        const float hx = float(factor[c][0]), hy = float(factor[c][1]), hz = float(factor[c][2]);
        const int last = n.nz - 1;
        std::vector<float> squares(n.nz);
        double energy = 0;
        for (int j = 0; j < n.ny; ++j) {
            const float* r = p + std::size_t(j) * n.nz;
            float* __restrict out = g + std::size_t(j) * n.nz;
            const float* xu = i + 1 < n.nx ? r + n.plane() : r;
            const float* xd = i > 0 ? r - n.plane() : r;
            const float* yu = j + 1 < n.ny ? r + n.nz : r;
            const float* yd = j > 0 ? r - n.nz : r;
            float* __restrict e = squares.data();
            for (int k = 0; k < n.nz; ++k) {
                const float dx = xu[k] - r[k], dy = yu[k] - r[k];
                out[k] -= hx * (dx + xd[k] - r[k]) + hy * (dy + yd[k] - r[k]);
                e[k] = hx * dx * dx + hy * dy * dy;
            }
            for (int k = 0; k < last; ++k) e[k] += hz * (r[k + 1] - r[k]) * (r[k + 1] - r[k]);
            for (int k = 1; k < last; ++k) out[k] -= hz * ((r[k + 1] - r[k]) + (r[k - 1] - r[k]));
            if (last > 0) {
                out[0] -= hz * (r[1] - r[0]);
                out[last] -= hz * (r[last - 1] - r[last]);
            }
            energy += 0.5 * row_sum(e, n.nz);
        }
        parts[task] = energy;
    });
    return in_order(parts);
}

// The same with a stiffness s of each voxel: an edge counts the mean of its two ends, so the force is the
// exact derivative of the energy.
double stiff_diffusion_force(In<float, 4> u, In<float, 3> stiffness, Force force,
                             std::array<std::array<double, 3>, 3> factor) {
    require_displacement(u, force, factor);
    for (int a = 0; a < 3; ++a)
        require(u.shape(a + 1) == stiffness.shape(a), "u and stiffness must lie on one grid");
    require_apart(force, stiffness);
    const Extent n = extent_of(u);
    std::vector<double> parts(3 * n.nx);
    nb::gil_scoped_release nogil;
    parallel_for(3 * n.nx, [&](int task) {
        const int c = task / n.nx, i = task % n.nx;
        const float hx = float(factor[c][0]), hy = float(factor[c][1]), hz = float(factor[c][2]);
        double energy = 0;
        for (int j = 0; j < n.ny; ++j) {
            const std::size_t row = n.plane() * i + std::size_t(j) * n.nz;
            const float *r = u.data() + c * n.volume() + row, *s = stiffness.data() + row;
            float* out = force.data() + c * n.volume() + row;
            double sum = 0;
            // A neighbour beyond the border is the voxel itself: no difference, no force.
            const auto across = [&](std::ptrdiff_t up, std::ptrdiff_t down, float h) {
                for (int k = 0; k < n.nz; ++k) {
                    const float forward = r[k + up] - r[k], back = r[k + down] - r[k];
                    const float stiff = s[k + up] + s[k];
                    out[k] -= 0.5f * h * (stiff * forward + (s[k + down] + s[k]) * back);
                    sum += 0.5f * h * stiff * forward * forward;
                }
            };
            across(i + 1 < n.nx ? std::ptrdiff_t(n.plane()) : 0, i > 0 ? -std::ptrdiff_t(n.plane()) : 0, hx);
            across(j + 1 < n.ny ? n.nz : 0, j > 0 ? -n.nz : 0, hy);
            for (int k = 0; k + 1 < n.nz; ++k) {
                const float dz = r[k + 1] - r[k], stiff = 0.5f * hz * (s[k + 1] + s[k]);
                out[k] -= stiff * dz;
                out[k + 1] += stiff * dz;
                sum += stiff * dz * dz;
            }
            energy += 0.5 * sum;
        }
        parts[task] = energy;
    });
    return in_order(parts);
}

}  // namespace

void register_refine(nb::module_& m) {
    m.def("absolute_force", &absolute_force, nb::arg("fixed"), nb::arg("moved"), nb::arg("weight"),
          nb::arg("force"), nb::arg("epsilon"),
          "Weighted smooth absolute difference; adds its derivative to force (3, X, Y, Z).");
    m.def("tensor_force", &tensor_force, nb::arg("fixed"), nb::arg("moved"), nb::arg("weight"),
          nb::arg("force"),
          "Weighted difference of the outer products; adds its derivative to force (3, X, Y, Z).");
    m.def("correlation_force", &correlation_force, nb::arg("fixed"), nb::arg("moved"), nb::arg("weight"),
          nb::arg("force"), nb::arg("radius"), nb::arg("floor"), nb::arg("squared"),
          "Weighted one minus local correlation; adds its derivative to force (3, X, Y, Z).");
    m.def("mean_square_force", &mean_square_force, nb::arg("force"),
          "Mean square of a force (3, X, Y, Z), each voxel weighted by its own square.");
    m.def("diffusion_force", &diffusion_force, nb::arg("u"), nb::arg("force"), nb::arg("factor"),
          "Half the squared differences of u times factor[component][axis]; adds its derivative to force.");
    m.def("stiff_diffusion_force", &stiff_diffusion_force, nb::arg("u"), nb::arg("stiffness"),
          nb::arg("force"), nb::arg("factor"),
          "The same with a stiffness (X, Y, Z), the mean of both voxels at each difference.");
}
