// Determinant of the Jacobian of x + u(x), a row of voxels at a time: central differences, one-sided at
// borders.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "shared/body.hpp"

namespace regweave {

// The two neighbours of x on an axis of n voxels (itself at a border) and one over their distance.
struct Neighbours {
    std::size_t below, above;
    float inverse;

    Neighbours(std::size_t x, std::size_t n) : below(x > 0 ? x - 1 : x), above(x + 1 < n ? x + 1 : x) {
        inverse = above > below ? 1.0f / float(above - below) : 0.0f;
    }
};

class JacobianRow {
  public:
    // u (3, X, Y, Z) must outlive this.
    JacobianRow(const float* u, const std::array<std::size_t, 3>& n) : u_(u), n_(n), gradient_(9 * n[2]) {}

    void operator()(std::size_t i, std::size_t j, float* out) {
        const std::size_t nz = n_[2];
        for (int a = 0; a < 3; ++a) differentiate(a, i, j, &gradient_[3 * a * nz]);
        const float* g = gradient_.data();
        for (std::size_t k = 0; k < nz; ++k) {
            const float x[3] = {1.0f + g[k], g[3 * nz + k], g[6 * nz + k]};
            const float y[3] = {g[nz + k], 1.0f + g[4 * nz + k], g[7 * nz + k]};
            const float z[3] = {g[2 * nz + k], g[5 * nz + k], 1.0f + g[8 * nz + k]};
            out[k] = determinant(x, y, z);
        }
    }

  private:
    const float* u_;
    std::array<std::size_t, 3> n_;
    std::vector<float> gradient_;

    const float* line(int component, std::size_t i, std::size_t j) const {
        return u_ + ((component * n_[0] + i) * n_[1] + j) * n_[2];
    }

    void differentiate(int component, std::size_t i, std::size_t j, float* __restrict g) {
        const Neighbours di(i, n_[0]), dj(j, n_[1]);
        const std::size_t nz = n_[2];
        const float *i0 = line(component, di.below, j), *i1 = line(component, di.above, j);
        const float *j0 = line(component, i, dj.below), *j1 = line(component, i, dj.above);
        const float* here = line(component, i, j);
        for (std::size_t k = 0; k < nz; ++k) g[k] = (i1[k] - i0[k]) * di.inverse;
        for (std::size_t k = 0; k < nz; ++k) g[nz + k] = (j1[k] - j0[k]) * dj.inverse;
        float* along = g + 2 * nz;
        for (std::size_t k = 1; k + 1 < nz; ++k) along[k] = (here[k + 1] - here[k - 1]) * 0.5f;
        for (std::size_t k : {std::size_t(0), nz - 1}) {
            const Neighbours dk(k, nz);
            along[k] = (here[dk.above] - here[dk.below]) * dk.inverse;
        }
    }
};

}  // namespace regweave
