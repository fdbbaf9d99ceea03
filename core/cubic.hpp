// An image as the cubic B-spline whose coefficients are its voxels: smooth in space, unlike their linear
// interpolation, and its noise hardly depends on where between two voxels it is looked at.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "require.hpp"
#include "shared/cell.hpp"

namespace regweave {

class CubicSampler {
  public:
    CubicSampler(const float* data, const std::array<std::size_t, 3>& n) : data_(data) {
        require_grid(n, "an array to sample");
        const std::ptrdiff_t stride[3] = {std::ptrdiff_t(n[1] * n[2]), std::ptrdiff_t(n[2]), 1};
        for (int a = 0; a < 3; ++a) {
            last_[a] = int(n[a]) - 1;
            stride_[a] = stride[a];
        }
    }

    // Value at a position in voxels; positions beyond the outermost voxels are clamped to them.
    float value(const double* p) const {
        const Taps x(p[0], last_[0], stride_[0]), y(p[1], last_[1], stride_[1]),
            z(p[2], last_[2], stride_[2]);
        float sum = 0;
        for (int a = 0; a < 4; ++a) {
            float plane = 0;
            for (int b = 0; b < 4; ++b) {
                const float* v = data_ + x.at[a] + y.at[b];
                float line = 0;
                for (int c = 0; c < 4; ++c) line += z.weight[c] * v[z.at[c]];
                plane += y.weight[b] * line;
            }
            sum += x.weight[a] * plane;
        }
        return sum;
    }

    // Derivatives of the value by the position; 0 along an axis where it is clamped.
    void gradient(const double* p, float* out) const {
        const Taps x(p[0], last_[0], stride_[0]), y(p[1], last_[1], stride_[1]),
            z(p[2], last_[2], stride_[2]);
        float sum[3] = {};
        for (int a = 0; a < 4; ++a) {
            float plane = 0, along_y = 0, along_z = 0;
            for (int b = 0; b < 4; ++b) {
                const float* v = data_ + x.at[a] + y.at[b];
                float line = 0, slope = 0;
                for (int c = 0; c < 4; ++c) line += z.weight[c] * v[z.at[c]];
                for (int c = 0; c < 4; ++c) slope += z.slope[c] * v[z.at[c]];
                plane += y.weight[b] * line;
                along_y += y.slope[b] * line;
                along_z += y.weight[b] * slope;
            }
            sum[0] += x.slope[a] * plane;
            sum[1] += x.weight[a] * along_y;
            sum[2] += x.weight[a] * along_z;
        }
        for (int a = 0; a < 3; ++a) out[a] = sum[a];
    }

  private:
    // The four voxels along an axis that a position lies between, as steps in memory, and their shares.
    struct Taps {
        float weight[4], slope[4];
        std::ptrdiff_t at[4];

        Taps(double p, int last, std::ptrdiff_t stride) {
            const double inside = clamped(p, last);
            const int cell = int(inside);
            const float t = float(inside - cell), s = 1.0f - t, moves = inside == p ? 1.0f : 0.0f;
            weight[0] = s * s * s / 6;
            weight[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
            weight[2] = (3 * s * s * s - 6 * s * s + 4) / 6;
            weight[3] = t * t * t / 6;
            slope[0] = moves * (-s * s / 2);
            slope[1] = moves * (1.5f * t * t - 2 * t);
            slope[2] = moves * (2 * s - 1.5f * s * s);
            slope[3] = moves * (t * t / 2);
            for (int k = 0; k < 4; ++k) at[k] = std::min(std::max(cell - 1 + k, 0), last) * stride;
        }
    };

    const float* data_;
    int last_[3];
    std::ptrdiff_t stride_[3];
};

}  // namespace regweave
