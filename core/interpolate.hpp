// Linear interpolation on a voxel grid, a row of samples at a time so that each step is a plain loop over
// arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "require.hpp"

namespace regweave {

// Positions in voxel units of one row of samples, an array for each axis.
struct RowPositions {
    std::vector<double> axis[3];

    explicit RowPositions(std::size_t n) {
        for (auto& a : axis) a.resize(n);
    }
    std::size_t size() const { return axis[0].size(); }
};

// The cell of eight voxels around each sample: index of its lowest corner, fractions of the way to the
// highest one.
struct RowCells {
    std::vector<std::int32_t> corner;
    std::vector<float> fraction[3];

    explicit RowCells(std::size_t n) : corner(n) {
        for (auto& f : fraction) f.resize(n);
    }
    std::size_t size() const { return corner.size(); }
};

// A grid of voxels in C order. Positions outside it are clamped to its border.
class Sampler {
  public:
    Sampler(std::size_t n0, std::size_t n1, std::size_t n2)
        : n_{std::int32_t(n0), std::int32_t(n1), std::int32_t(n2)} {
        require_grid(std::array<std::size_t, 3>{n0, n1, n2}, "an array to sample");
        const std::int32_t stride[3] = {n_[1] * n_[2], n_[2], 1};
        for (int a = 0; a < 3; ++a) {
            stride_[a] = stride[a];
            step_[a] = n_[a] > 1 ? stride[a] : 0;
        }
    }

    // Index distance from a cell's lowest corner to corner c in 0..7; bits 4, 2, 1 of c are axes 0, 1, 2.
    std::int32_t corner_step(int c) const {
        return (c & 4 ? step_[0] : 0) + (c & 2 ? step_[1] : 0) + (c & 1 ? step_[2] : 0);
    }

    // The last cell also holds the border voxel (fraction 1), so the eight corners always exist.
    void locate(const RowPositions& at, RowCells& cells) const {
        const std::size_t n = at.size();
        for (int a = 0; a < 3; ++a) {
            const double* p = at.axis[a].data();
            float* fraction = cells.fraction[a].data();
            std::int32_t* corner = cells.corner.data();
            const double last = n_[a] - 1;
            const std::int32_t last_cell = std::max(n_[a] - 2, 0);
            const std::int32_t stride = stride_[a];
            const std::int32_t keep = a > 0;
            for (std::size_t k = 0; k < n; ++k) {
                const double x = std::min(std::max(0.0, p[k]), last);  // this order takes NaN to 0
                const std::int32_t cell = std::min(std::int32_t(x), last_cell);
                fraction[k] = float(x - cell);
                corner[k] = corner[k] * keep + cell * stride;
            }
        }
    }

    void sample(const float* data, const RowCells& cells, float* out) const {
        const std::size_t n = cells.size();
        const std::int32_t* corner = cells.corner.data();
        const float* f0 = cells.fraction[0].data();
        const float* f1 = cells.fraction[1].data();
        const float* f2 = cells.fraction[2].data();
        const std::int32_t s0 = step_[0], s1 = step_[1], s2 = step_[2];
        for (std::size_t k = 0; k < n; ++k) {
            const float* v = data + corner[k];
            const float v00 = mix(v[0], v[s2], f2[k]);
            const float v01 = mix(v[s1], v[s1 + s2], f2[k]);
            const float v10 = mix(v[s0], v[s0 + s2], f2[k]);
            const float v11 = mix(v[s0 + s1], v[s0 + s1 + s2], f2[k]);
            out[k] = mix(mix(v00, v01, f1[k]), mix(v10, v11, f1[k]), f0[k]);
        }
    }

    // A voxel reaches half a spacing beyond its centre: inside is [-0.5, n - 0.5] along each axis. Grids that
    // are half a voxel apart are common, so a little more is inside: rounding in a header decides nothing.
    void inside(const RowPositions& at, std::uint8_t* out) const {
        constexpr double kReach = 0.5 + 1e-4;
        const double *p0 = at.axis[0].data(), *p1 = at.axis[1].data(), *p2 = at.axis[2].data();
        const double e0 = n_[0] - 1 + kReach, e1 = n_[1] - 1 + kReach, e2 = n_[2] - 1 + kReach;
        for (std::size_t k = 0; k < at.size(); ++k) {
            out[k] = (p0[k] >= -kReach) & (p0[k] <= e0) & (p1[k] >= -kReach) & (p1[k] <= e1) &
                     (p2[k] >= -kReach) & (p2[k] <= e2);
        }
    }

    // Value of a field (3, ...) at one position and its derivatives [component][axis], in float64.
    void linearise(const float* u, const double* p, double* value, double (*gradient)[3]) const {
        std::size_t corner = 0;
        double f[3];
        bool outside[3];
        for (int a = 0; a < 3; ++a) {
            const double x = std::min(std::max(0.0, p[a]), double(n_[a] - 1));
            const std::int32_t cell = std::min(std::int32_t(x), std::max(n_[a] - 2, 0));
            outside[a] = x != p[a];
            f[a] = x - cell;
            corner += std::size_t(cell) * stride_[a];
        }
        const std::size_t volume = std::size_t(n_[0]) * stride_[0];
        for (int component = 0; component < 3; ++component)
            linearise_cell(u + component * volume + corner, f, value[component], gradient[component]);
        for (int component = 0; component < 3; ++component)
            for (int a = 0; a < 3; ++a) gradient[component][a] = outside[a] ? 0.0 : gradient[component][a];
    }

  private:
    // One axis after the other: the four edges along the last one, the two faces between them, the cell.
    void linearise_cell(const float* v, const double* f, double& value, double* gradient) const {
        const std::int32_t s0 = step_[0], s1 = step_[1], s2 = step_[2];
        double at[2], along_y[2], along_z[2];
        for (int x = 0; x < 2; ++x, v += s0) {
            const double low = v[0], high = v[s1];
            const double low_z = v[s2] - low, high_z = v[s1 + s2] - high;
            const double first = low + f[2] * low_z, second = high + f[2] * high_z;
            along_y[x] = second - first;
            along_z[x] = low_z + f[1] * (high_z - low_z);
            at[x] = first + f[1] * along_y[x];
        }
        gradient[0] = at[1] - at[0];
        gradient[1] = along_y[0] + f[0] * (along_y[1] - along_y[0]);
        gradient[2] = along_z[0] + f[0] * (along_z[1] - along_z[0]);
        value = at[0] + f[0] * gradient[0];
    }

    // Exact at both ends, which a + f (b - a) is not.
    static float mix(float a, float b, float f) { return (1.0f - f) * a + f * b; }

    std::int32_t n_[3];
    std::int32_t stride_[3];  // distance between neighbours along an axis
    std::int32_t step_[3];    // the same, 0 along an axis of one voxel
};

}  // namespace regweave
