// Costs of an image pulled through a displacement, with their exact derivative by the displacement.
//
// The pulled image m(p), p = matrix · (x + u), is smooth between the voxels, see cubic.hpp. Costs add
// ∂cost/∂m to a slope (X, Y, Z); pulled_force turns it into the force, slope · matrixᵀ ∇m(p).
#include <nanobind/stl/array.h>

#include <cmath>
#include <functional>

#include "arrays.hpp"
#include "cubic.hpp"
#include "local_correlation.hpp"
#include "mapped_rows.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
template <int Dim>
using Sum = nb::ndarray<float, nb::ndim<Dim>, nb::c_contig, nb::device::cpu>;

template <class A, class B>
void require_apart(const A& sum, const B& input) {
    const std::less_equal<const float*> before;
    require(before(sum.data() + sum.size(), input.data()) || before(input.data() + input.size(), sum.data()),
            "what is added to must not share memory with an input");
}

void require_same(const In<float, 3>& fixed, const In<float, 3>& moved, const In<float, 3>& weight,
                  const Sum<3>& slope, float scale) {
    require_volume(fixed, "fixed");
    for (int a = 0; a < 3; ++a)
        require(fixed.shape(a) == moved.shape(a) && fixed.shape(a) == weight.shape(a) &&
                    fixed.shape(a) == slope.shape(a),
                "fixed, moved, weight and slope must lie on one grid");
    require(std::isfinite(scale), "the scale must be finite");
    require_apart(slope, fixed);
    require_apart(slope, moved);
    require_apart(slope, weight);
}

// An image cut to [0, 1] does not change where it is cut.
float uncut(float value, float scale) { return value > 0.0f && value < 1.0f ? scale : 0.0f; }

// Σ w (√(d² + ε²) − ε), as absolute_force.
double absolute_slope(In<float, 3> fixed, In<float, 3> moved, In<float, 3> weight, Sum<3> slope, float scale,
                      float epsilon) {
    require_same(fixed, moved, weight, slope, scale);
    require(std::isfinite(epsilon) && epsilon > 0.0f, "epsilon must be positive");
    const int planes = int(fixed.shape(0));
    const std::size_t plane = fixed.shape(1) * fixed.shape(2);
    std::vector<double> parts(planes);
    {
        nb::gil_scoped_release nogil;
        parallel_for(planes, [&](int i) {
            const float *f = fixed.data() + i * plane, *m = moved.data() + i * plane,
                        *w = weight.data() + i * plane;
            float* out = slope.data() + i * plane;
            double total[4] = {};  // additions that do not wait for each other
            for (std::size_t v = 0; v < plane; ++v) {
                const float d = m[v] - f[v], root = std::sqrt(d * d + epsilon * epsilon);
                out[v] += w[v] * d / root * uncut(m[v], scale);
                total[v % 4] += double(w[v] * (root - epsilon));
            }
            parts[i] = (total[0] + total[1]) + (total[2] + total[3]);
        });
    }
    double sum = 0;
    for (double part : parts) sum += part;
    return sum;
}

double correlation_slope(In<float, 3> fixed, In<float, 3> moved, In<float, 3> weight, Sum<3> slope,
                         float scale, int radius, float floor, bool squared) {
    require_same(fixed, moved, weight, slope, scale);
    require(std::isfinite(floor) && floor > 0.0f, "the floor of the variance must be positive");
    require(radius >= 0 && radius <= 1024, "the radius must be 0 to 1024 voxels");
    const Extent n{int(fixed.shape(0)), int(fixed.shape(1)), int(fixed.shape(2))};
    nb::gil_scoped_release nogil;
    LocalCorrelation local(fixed.data(), moved.data(), weight.data(), n, radius, floor);
    const double cost = squared ? local.cost<true>() : local.cost<false>();
    local.derivative([&](int i, int j, const float* found) {
        const float* m = moved.data() + n.row(i, j);
        float* out = slope.data() + n.row(i, j);
        for (int k = 0; k < n.nz; ++k) out[k] += found[k] * uncut(m[k], scale);
    });
    return cost;
}

// Calls at(i, p) for each voxel i of a field's grid, with the position p that it is mapped to.
template <class At>
void for_each_voxel(const Matrix& map, const In<float, 4>& u, const At& at) {
    nb::gil_scoped_release nogil;
    for_each_row(map, u, [&](const RowPositions& row, RowCells&, std::size_t offset) {
        for (std::size_t k = 0; k < row.size(); ++k) {
            const double p[3] = {row.axis[0][k], row.axis[1][k], row.axis[2][k]};
            at(offset + k, p);
        }
    });
}

void require_displacement(const In<float, 4>& u) {
    require_volume(u, "u");
    require(u.shape(0) == 3, "u must have shape (3, X, Y, Z)");
}

Out<float> pulled_image(In<float, 3> image, In<double, 2> matrix, In<float, 4> u) {
    require_displacement(u);
    const Matrix map = matrix_of(matrix);
    const CubicSampler sampler(image.data(), grid_shape(image));
    NewArray<float, 3> out(grid_shape(u));
    float* values = out.data.get();
    for_each_voxel(map, u, [&](std::size_t i, const double* p) { values[i] = sampler.value(p); });
    return out.release();
}

void pulled_force(In<float, 3> image, In<double, 2> matrix, In<float, 4> u, In<float, 3> slope,
                  Sum<4> force) {
    require_displacement(u);
    require(force.shape(0) == 3, "force must have shape (3, X, Y, Z)");
    for (int a = 1; a < 4; ++a)
        require(u.shape(a) == force.shape(a) && u.shape(a) == slope.shape(a - 1),
                "u, slope and force must lie on one grid");
    require_apart(force, u);
    require_apart(force, slope);
    require_apart(force, image);
    const Matrix map = matrix_of(matrix);
    const CubicSampler sampler(image.data(), grid_shape(image));
    const std::size_t volume = u.shape(1) * u.shape(2) * u.shape(3);
    const float* s = slope.data();
    float* out = force.data();
    for_each_voxel(map, u, [&](std::size_t i, const double* p) {
        if (s[i] == 0.0f) return;
        float g[3];
        sampler.gradient(p, g);
        for (int c = 0; c < 3; ++c)
            out[c * volume + i] += s[i] * float(map.m[0][c] * g[0] + map.m[1][c] * g[1] + map.m[2][c] * g[2]);
    });
}

}  // namespace

void register_slopes(nb::module_& m) {
    m.def(
        "absolute_slope", &absolute_slope, nb::arg("fixed"), nb::arg("moved"), nb::arg("weight"),
        nb::arg("slope"), nb::arg("scale"), nb::arg("epsilon"),
        "Cost of absolute_force for one channel; its derivative by moved, times scale where moved is inside "
        "0 to 1, is added to slope (X, Y, Z).");
    m.def("correlation_slope", &correlation_slope, nb::arg("fixed"), nb::arg("moved"), nb::arg("weight"),
          nb::arg("slope"), nb::arg("scale"), nb::arg("radius"), nb::arg("floor"), nb::arg("squared"),
          "The same for correlation_force.");
    m.def("pulled_image", &pulled_image, nb::arg("image"), nb::arg("matrix"), nb::arg("u"),
          "The cubic B-spline with the voxels as coefficients at matrix · (x + u), clamped to the image.");
    m.def("pulled_force", &pulled_force, nb::arg("image"), nb::arg("matrix"), nb::arg("u"), nb::arg("slope"),
          nb::arg("force"), "Adds slope times the derivative of pulled_image by u to force.");
}
