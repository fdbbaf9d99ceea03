// Signed distance of the samples of a plane to drawn outlines.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
constexpr double kFar = std::numeric_limits<double>::infinity();

// Squares of the distance from each sample to the nearest one where `inside` has the value `wanted`, added to
// `out`: along the columns by two sweeps, along the rows by the lower envelope of parabolas (Felzenszwalb
// 2012).
void add_distance(const std::uint8_t* inside, bool wanted, std::size_t nv, std::size_t nu, double sv,
                  double su, double* out) {
    std::vector<double> column(nv * nu, kFar), height(nu), border(nu + 1);
    std::vector<std::size_t> place(nu);
    for (std::size_t u = 0; u < nu; ++u) {
        double last = kFar;
        for (std::size_t v = 0; v < nv; ++v) {
            last = (inside[v * nu + u] != 0) == wanted ? 0.0 : last + sv;
            column[v * nu + u] = last;
        }
        for (std::size_t v = nv; v-- > 0;) {
            last = std::min(column[v * nu + u], v + 1 < nv ? column[(v + 1) * nu + u] + sv : kFar);
            column[v * nu + u] = last;
        }
    }
    for (std::size_t v = 0; v < nv; ++v) {
        std::size_t count = 0;
        for (std::size_t u = 0; u < nu; ++u) {
            const double h = column[v * nu + u];
            if (h == kFar) continue;
            const double square = h * h, x = double(u) * su;
            double from = -kFar;
            while (count) {
                const double other = double(place[count - 1]) * su;
                from = ((square + x * x) - (height[count - 1] + other * other)) / (2 * (x - other));
                if (from > border[count - 1]) break;
                --count;
            }
            place[count] = u, height[count] = square, border[count] = count ? from : -kFar;
            ++count;
        }
        std::size_t now = 0;
        for (std::size_t u = 0; u < nu; ++u) {
            if (!count) {
                out[v * nu + u] += (inside[v * nu + u] != 0) == wanted ? 0.0 : kFar;
                continue;
            }
            const double x = double(u) * su;
            while (now + 1 < count && border[now + 1] < x) ++now;
            const double d = x - double(place[now]) * su;
            out[v * nu + u] += std::sqrt(d * d + height[now]);
        }
    }
}

// Distance of samples (v, u), negative inside. Within `band` samples of an edge it is that to the edge,
// elsewhere that to the nearest sample on the other side, less half a sample and at least the width of the
// band.
Out<float> plane_distance(In<std::uint8_t, 2> inside, In<double, 2> start, In<double, 2> end,
                          std::array<double, 2> step, double band) {
    const std::size_t nv = inside.shape(0), nu = inside.shape(1), edges = start.shape(0);
    require(nv >= 1 && nu >= 1 && nv <= kLongestAxis && nu <= kMostVoxels / nv,
            "the plane has 1 to 2^31 - 1 samples");
    require(start.shape(1) == 2 && end.shape(1) == 2 && end.shape(0) == edges,
            "edges are two lists of points (u, v)");
    require_finite(start.data(), 2 * edges, "edges must be finite");
    require_finite(end.data(), 2 * edges, "edges must be finite");
    for (double s : step) require(std::isfinite(s) && s > 0, "steps must be above 0");
    require(std::isfinite(band) && band >= 0, "the band must be 0 or more");
    NewArray<float, 2> out({nv, nu});
    {
        nb::gil_scoped_release nogil;
        const double su = step[0], sv = step[1], least = std::min(su, sv), width = band * least;
        std::vector<double> near(nv * nu, kFar), away(nv * nu, 0.0);
        for (std::size_t e = 0; e < edges; ++e) {
            const double u0 = start(e, 0), v0 = start(e, 1), u1 = end(e, 0), v1 = end(e, 1);
            const auto range = [band](double a, double b, std::size_t n) {
                const double low = std::max(std::floor(std::min(a, b) - band), 0.0);
                const double high = std::min(std::ceil(std::max(a, b) + band), double(n) - 1);
                return std::array<double, 2>{low, high};
            };
            const auto us = range(u0, u1, nu), vs = range(v0, v1, nv);
            const double du = (u1 - u0) * su, dv = (v1 - v0) * sv,
                         length = std::max(du * du + dv * dv, 1e-12);
            for (double v = vs[0]; v <= vs[1]; ++v)
                for (double u = us[0]; u <= us[1]; ++u) {
                    const double x = (u - u0) * su, y = (v - v0) * sv;
                    const double t = std::clamp((x * du + y * dv) / length, 0.0, 1.0);
                    double& at = near[std::size_t(v) * nu + std::size_t(u)];
                    at = std::min(at, std::hypot(x - t * du, y - t * dv));
                }
        }
        add_distance(inside.data(), true, nv, nu, sv, su, away.data());
        add_distance(inside.data(), false, nv, nu, sv, su, away.data());
        for (std::size_t i = 0; i < nv * nu; ++i) {
            const double rough = std::max(away[i] - 0.5 * least, width);
            const double d = near[i] <= width ? near[i] : rough;
            out.data[i] = float(inside.data()[i] ? -d : d);
        }
    }
    return out.release();
}

}  // namespace

void register_plane_distance(nb::module_& m) {
    m.def("plane_distance", &plane_distance, nb::arg("inside"), nb::arg("start"), nb::arg("end"),
          nb::arg("step"), nb::arg("band"),
          "Signed distance of the samples (v, u) of a plane to edges in units of samples (u, v).");
}
