// Adam on control points, the length of a step set by each point's own recent gradients (Kingma and Ba 2015).
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
template <int Dim>
using State = nb::ndarray<float, nb::ndim<Dim>, nb::c_contig, nb::device::cpu>;

struct Rates {
    float first, second;  // shares of the moments that a step keeps
    float length, reach;  // of a step, and the most that a control point moves, in voxels
    float quiet;          // share of the typical gradient below which steps are shorter
};

// The second moment is that of the whole vector, so that the direction is kept. Gradients are divided by the
// stretch of the voxels along each axis, and so are the displacements.
class Adam {
  public:
    Adam(const float* gradient, float* first, float* second, std::size_t planes, std::size_t plane,
         const std::array<float, 3>& stretch, const Rates& rates)
        : gradient_(gradient), first_(first), second_(second), planes_(planes), plane_(plane), rates_(rates) {
        for (int c = 0; c < 3; ++c) inverse_[c] = 1.0f / stretch[c];
    }

    // Brings both moments up to date; returns the root mean square of the gradient.
    float observe() const {
        std::vector<double> parts(planes_);
        parallel_for(int(planes_), [&](int i) {
            double sum[4] = {};  // additions that do not wait for each other
            for (std::size_t v = 0; v < plane_; v += kRun)
                observe_run(i * plane_ + v, std::min(kRun, plane_ - v), sum);
            parts[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        });
        double total = 0;
        for (double part : parts) total += part;
        return float(std::sqrt(total / double(planes_ * plane_)));
    }

    void move(int done, float typical, float* out) const {
        const float mean = float(1.0 / (1.0 - std::pow(double(rates_.first), done)));
        const float spread = float(1.0 / (1.0 - std::pow(double(rates_.second), done)));
        const float guard = rates_.quiet * typical + 1e-12f, most = rates_.reach;
        parallel_for(int(planes_), [&](int i) {
            float factor[kRun];
            for (std::size_t first = 0; first < plane_; first += kRun) {
                const std::size_t at = i * plane_ + first, n = std::min(kRun, plane_ - first);
                for (std::size_t v = 0; v < n; ++v)
                    factor[v] = -rates_.length * mean / (std::sqrt(second_[at + v] * spread) + guard);
                for (int c = 0; c < 3; ++c) {
                    const float* m = first_ + c * planes_ * plane_ + at;
                    float* d = out + c * planes_ * plane_ + at;
                    for (std::size_t v = 0; v < n; ++v) {
                        const float wanted = factor[v] * m[v] * inverse_[c];
                        d[v] = std::min(std::max(wanted, -most), most);
                    }
                }
            }
        });
    }

  private:
    static constexpr std::size_t kRun = 1024;  // control points whose scratch stays in the first cache

    void observe_run(std::size_t at, std::size_t n, double* sum) const {
        float squares[kRun] = {};
        const float keep = rates_.first, kept = rates_.second;
        for (int c = 0; c < 3; ++c) {
            const float* g = gradient_ + c * planes_ * plane_ + at;
            float* m = first_ + c * planes_ * plane_ + at;
            for (std::size_t v = 0; v < n; ++v) {
                const float here = g[v] * inverse_[c];
                m[v] = keep * m[v] + (1.0f - keep) * here;
                squares[v] += here * here;
            }
        }
        for (std::size_t v = 0; v < n; ++v) sum[v % 4] += squares[v];
        float* s = second_ + at;
        for (std::size_t v = 0; v < n; ++v) s[v] = kept * s[v] + (1.0f - kept) * squares[v];
    }

    const float* gradient_;
    float *first_, *second_;
    std::size_t planes_, plane_;
    float inverse_[3];
    Rates rates_;
};

Out<float> descend(In<float, 4> gradient, State<4> first, State<3> second, std::array<float, 3> stretch,
                   int done, std::array<float, 2> keep, float length, float reach, float quiet) {
    const auto n = require_volume(gradient, "the gradient");
    require(gradient.shape(0) == 3 && first.shape(0) == 3, "a gradient has three components");
    for (int a = 0; a < 3; ++a)
        require(first.shape(a + 1) == n[a] && second.shape(a) == n[a], "the moments must fit the gradient");
    for (float s : stretch) require(std::isfinite(s) && s > 0, "the stretch must be positive");
    for (float k : keep) require(k >= 0 && k < 1, "the moments must keep a share of 0 to 1");
    require(done >= 1, "the present step counts as done");
    require(std::isfinite(length) && reach >= 0 && quiet >= 0, "lengths must be finite and 0 or more");
    NewArray<float, 4> out({3, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        const Rates rates{keep[0], keep[1], length, reach, quiet};
        const Adam adam(gradient.data(), first.data(), second.data(), n[0], n[1] * n[2], stretch, rates);
        const float typical = adam.observe();
        adam.move(done, typical, out.data.get());
    }
    return out.release();
}

}  // namespace

void register_descent(nb::module_& m) {
    m.def("descend", &descend, nb::arg("gradient"), nb::arg("first"), nb::arg("second"), nb::arg("stretch"),
          nb::arg("done"), nb::arg("keep"), nb::arg("length"), nb::arg("reach"), nb::arg("quiet"),
          "Displacement of control points by Adam, for the gradient (3, X, Y, Z) of step number done; the "
          "moments (3, X, Y, Z) and (X, Y, Z) are brought up to date in place.");
}
