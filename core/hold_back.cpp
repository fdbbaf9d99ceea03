// One step of the refinement: move control points, compose, and leave those where they are that would fold.
//
// u ∘ (id + δ) is computed once for all voxels. Where it folds, the control points around are put back, and
// only the rows of voxels that these reach are computed again.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "bspline.hpp"
#include "interpolate.hpp"
#include "jacobian.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;
using Vector = std::array<double, 3>;
using Flags = Buffer<std::uint8_t>;

std::size_t product(const Shape& n) { return n[0] * n[1] * n[2]; }

bool any_of(const std::uint8_t* flags, std::size_t n) {
    std::uint8_t any = 0;
    for (std::size_t v = 0; v < n; ++v) any |= flags[v];
    return any != 0;
}

// Flags (outer, columns, inner) of what is known along an axis, to flags (outer, rows, inner): a row has one
// if a column with a weight in it has.
Flags reach_axis(const AxisMatrix& m, const Flags& in, std::size_t outer, std::size_t inner) {
    const std::size_t rows = m.n_rows();
    Flags out(outer * rows * inner);
    auto reach_row = [&](std::size_t o, std::size_t r) {
        std::uint8_t* target = &out[(o * rows + r) * inner];
        std::fill_n(target, inner, 0);
        for (std::size_t e = m.start[r]; e < m.start[r + 1]; ++e) {
            const std::uint8_t* source = &in[(o * m.n_columns + m.column[e]) * inner];
            for (std::size_t k = 0; k < inner; ++k) target[k] |= source[k];
        }
    };
    if (outer == 1) {
        parallel_for(int(rows), [&](int r) { reach_row(0, r); });
        return out;
    }
    const std::size_t block = std::max<std::size_t>(1, 8192 / (rows * inner));  // a task is worth its call
    parallel_for(int((outer + block - 1) / block), [&](int task) {
        for (std::size_t o = task * block; o < std::min(outer, (task + 1) * block); ++o)
            if (any_of(&in[o * m.n_columns * inner], m.n_columns * inner))
                for (std::size_t r = 0; r < rows; ++r) reach_row(o, r);
            else  // few voxels fold
                std::fill_n(&out[o * rows * inner], rows * inner, 0);
    });
    return out;
}

// Flags with their six neighbours.
Flags dilated(const Flags& in, const Shape& n) {
    const std::size_t plane = n[1] * n[2];
    Flags out(in.size());
    parallel_for(int(n[0]), [&](int i) {
        const std::uint8_t* p = &in[i * plane];
        std::uint8_t* q = &out[i * plane];
        std::copy_n(p, plane, q);
        auto add = [&](std::size_t begin, std::size_t end, const std::uint8_t* shifted) {
            for (std::size_t v = begin; v < end; ++v) q[v] |= shifted[v];
        };
        if (i > 0) add(0, plane, p - plane);
        if (std::size_t(i) + 1 < n[0]) add(0, plane, p + plane);
        add(n[2], plane, p - n[2]);
        add(0, plane - n[2], p + n[2]);
        for (std::size_t row = 0; row < plane; row += n[2]) {
            add(row + 1, row + n[2], p - 1);
            add(row, row + n[2] - 1, p + 1);
        }
    });
    return out;
}

class Step {
  public:
    Step(const float* u, const In<float, 4>& update, const Shape& n, const Shape& nodes,
         const std::array<AxisMatrix, 3>& axes, float least, float* out)
        : u_(u),
          n_(n),
          nodes_(nodes),
          axes_(axes),
          least_(least),
          out_(out),
          coefficients_(update.data()),
          lines_(3 * nodes[0] * nodes[1] * n[2]),
          planes_(3 * nodes[0] * n[1] * n[2]),
          fold_(product(n)),
          folds_(n[0], 0),
          changed_(nodes[0] * nodes[1]),
          rows_(n[0] * n[1]) {}

    // False where the step folds after so many attempts.
    bool run(int attempts) {
        std::fill_n(changed_.data(), changed_.size(), 1);  // so the first attempt writes every voxel
        for (int attempt = 0; attempt < attempts; ++attempt) {
            compose();
            find_folds();
            bool any = false;
            for (std::uint8_t f : folds_) any |= f != 0;
            if (!any) return true;
            put_back(attempt + 1);
        }
        return false;
    }

  private:
    const float* u_;
    Shape n_, nodes_;
    const std::array<AxisMatrix, 3>& axes_;
    float least_;
    float* out_;
    const float* coefficients_;            // the update, or what is left of it
    std::unique_ptr<Buffer<float>> kept_;  // of it, once a control point was put back
    Buffer<float> lines_, planes_;
    Flags fold_;                       // voxels that fold
    std::vector<std::uint8_t> folds_;  // planes with one
    Flags changed_;                    // rows of control points that were moved since the last attempt
    Flags rows_;                       // rows of voxels that these reach

    // The free-form deformation axis by axis, last one first, and u at the displaced voxels.
    void compose() {
        const std::size_t nz = n_[2];
        const Flags planes = reach_axis(axes_[1], changed_, nodes_[0], 1);
        rows_ = reach_axis(axes_[0], planes, 1, n_[1]);
        parallel_for(int(3 * nodes_[0]), [&](int task) {
            const std::size_t a = task % nodes_[0];
            std::vector<float> side_by_side;
            float* lines = &lines_[task * nodes_[1] * nz];
            for (std::size_t b = 0; b < nodes_[1];) {
                std::size_t run = 0;
                while (run < 8 && b + run < nodes_[1] && changed_[a * nodes_[1] + b + run]) ++run;
                if (run)
                    multiply_last_axis(axes_[2], &coefficients_[(task * nodes_[1] + b) * nodes_[2]],
                                       lines + b * nz, run, side_by_side);
                b += std::max<std::size_t>(run, 1);
            }
            for (std::size_t j = 0; j < n_[1]; ++j)
                if (planes[a * n_[1] + j])
                    combine_lines(axes_[1], j, lines, nz, nz, &planes_[(task * n_[1] + j) * nz]);
        });
        const Sampler sampler(n_[0], n_[1], n_[2]);
        parallel_for(int(n_[0]), [&](int i) {
            RowPositions at(nz);
            RowCells cells(nz);
            std::vector<float> d(3 * nz);
            for (std::size_t j = 0; j < n_[1]; ++j)
                if (rows_[i * n_[1] + j]) compose_row(sampler, i, j, at, cells, d.data());
        });
    }

    void compose_row(const Sampler& sampler, std::size_t i, std::size_t j, RowPositions& at, RowCells& cells,
                     float* d) {
        const std::size_t nz = n_[2], plane = n_[1] * nz;
        const double first[3] = {double(i), double(j), 0.0};
        for (int a = 0; a < 3; ++a) {
            combine_lines(axes_[0], i, &planes_[a * nodes_[0] * plane + j * nz], plane, nz, d + a * nz);
            const double step = a == 2;
            for (std::size_t k = 0; k < nz; ++k) at.axis[a][k] = first[a] + step * double(k) + d[a * nz + k];
        }
        sampler.locate(at, cells);
        for (int a = 0; a < 3; ++a) {
            float* target = out_ + a * product(n_) + i * plane + j * nz;
            sampler.sample(u_ + a * product(n_), cells, target);
            for (std::size_t k = 0; k < nz; ++k) target[k] += d[a * nz + k];
        }
    }

    // Differences reach one row further than what was computed again.
    bool near_changed(std::size_t i, std::size_t j) const {
        const std::uint8_t* r = &rows_[i * n_[1] + j];
        return *r || (i > 0 && *(r - n_[1])) || (i + 1 < n_[0] && r[n_[1]]) || (j > 0 && *(r - 1)) ||
               (j + 1 < n_[1] && r[1]);
    }

    // A voxel folds if its determinant is below the least, and below what it was before the step.
    void find_folds() {
        const std::size_t nz = n_[2];
        parallel_for(int(n_[0]), [&](int i) {
            JacobianRow after(out_, n_), before(u_, n_);
            std::vector<float> here(nz), there(nz);
            std::uint8_t* plane = &fold_[i * n_[1] * nz];
            for (std::size_t j = 0; j < n_[1]; ++j) {
                if (!near_changed(i, j)) continue;
                after(i, j, here.data());
                bool low = false;
                for (std::size_t k = 0; k < nz; ++k) low |= here[k] < least_;
                std::fill_n(plane + j * nz, nz, 0);
                if (!low) continue;
                before(i, j, there.data());
                for (std::size_t k = 0; k < nz; ++k)
                    plane[j * nz + k] = here[k] < least_ && here[k] < there[k];
            }
            folds_[i] = any_of(plane, n_[1] * nz);
        });
    }

    // Control points that move a voxel within that many voxels of a fold go back to where they were.
    void put_back(int reach) {
        Flags near = dilated(fold_, n_);
        for (int r = 1; r < reach; ++r) near = dilated(near, n_);
        near = reach_axis(axes_[0].transposed(), near, 1, n_[1] * n_[2]);
        near = reach_axis(axes_[1].transposed(), near, nodes_[0], n_[2]);
        near = reach_axis(axes_[2].transposed(), near, nodes_[0] * nodes_[1], 1);
        float* kept = own_coefficients();
        const std::size_t volume = product(nodes_);
        parallel_for(int(nodes_[0]), [&](int plane) {
            for (std::size_t row = plane * nodes_[1]; row < (plane + 1) * nodes_[1]; ++row) {
                bool any = false;
                for (std::size_t v = row * nodes_[2]; v < (row + 1) * nodes_[2]; ++v)
                    for (std::size_t at = v; near[v] && at < 3 * volume; at += volume) {
                        any |= kept[at] != 0.0f;
                        kept[at] = 0.0f;
                    }
                changed_[row] = any;
            }
        });
    }

    // The update is the caller's: what is put back is written to a copy.
    float* own_coefficients() {
        if (!kept_) {
            const std::size_t plane = nodes_[1] * nodes_[2];
            kept_ = std::make_unique<Buffer<float>>(3 * product(nodes_));
            parallel_for(int(3 * nodes_[0]), [&](int task) {
                std::copy_n(coefficients_ + task * plane, plane, kept_->data() + task * plane);
            });
            coefficients_ = kept_->data();
        }
        return kept_->data();
    }
};

Out<float> hold_back(In<float, 4> u, In<float, 4> update, Vector origin, Vector spacing, float least,
                     int attempts) {
    const Shape n = require_volume(u, "u"), nodes = require_volume(update, "the lattice");
    require(u.shape(0) == 3 && update.shape(0) == 3, "u and update must have three components");
    require(attempts >= 1, "there must be an attempt");
    require(nodes[0] <= kMostVoxels / 3, "the lattice is too long");
    const auto axes = lattice_axes(n, nodes, origin, spacing);
    NewArray<float, 4> out({3, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        if (!Step(u.data(), update, n, nodes, axes, least, out.data.get()).run(attempts))
            std::copy_n(u.data(), u.size(), out.data.get());
    }
    return out.release();
}

}  // namespace

void register_hold_back(nb::module_& m) {
    m.def("hold_back", &hold_back, nb::arg("u"), nb::arg("update"), nb::arg("origin"), nb::arg("spacing"),
          nb::arg("least"), nb::arg("attempts"),
          "Compose u with the free-form deformation of an update; control points near voxels that it brings "
          "below the least Jacobian stay, farther ones at each attempt; u itself where none succeeds.");
}
