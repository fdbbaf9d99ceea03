// Linear interpolation on a voxel grid, a row of samples at a time so that each step is a plain loop over
// arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "require.hpp"
#include "shared/cell.hpp"

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

    // The cell of sample k of a row.
    Cell cell(const RowCells& cells, std::size_t k) const {
        Cell out;
        out.corner = cells.corner[k];
        for (int a = 0; a < 3; ++a) {
            out.f[a] = cells.fraction[a][k];
            out.step[a] = step_[a];
        }
        return out;
    }

    void locate(const RowPositions& at, RowCells& cells) const {
        const std::size_t n = at.size();
        for (int a = 0; a < 3; ++a) {
            const double* p = at.axis[a].data();
            float* fraction = cells.fraction[a].data();
            std::int32_t* corner = cells.corner.data();
            const double last = n_[a] - 1;
            const std::int32_t last_cell = std::max(n_[a] - 2, 0), stride = stride_[a], keep = a > 0;
            for (std::size_t k = 0; k < n; ++k) {
                const double x = clamped(p[k], last);
                const std::int32_t cell = least(std::int32_t(x), last_cell);
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
        for (std::size_t k = 0; k < n; ++k)
            out[k] = trilinear(data + corner[k], s0, s1, s2, f0[k], f1[k], f2[k]);
    }

    void inside(const RowPositions& at, std::uint8_t* out) const {
        const double *p0 = at.axis[0].data(), *p1 = at.axis[1].data(), *p2 = at.axis[2].data();
        const std::int32_t n0 = n_[0], n1 = n_[1], n2 = n_[2];
        for (std::size_t k = 0; k < at.size(); ++k)
            out[k] = inside_axis(p0[k], n0) & inside_axis(p1[k], n1) & inside_axis(p2[k], n2);
    }

  private:
    std::int32_t n_[3];
    std::int32_t stride_[3];  // distance between neighbours along an axis
    std::int32_t step_[3];    // the same, 0 along an axis of one voxel
};

}  // namespace regweave
