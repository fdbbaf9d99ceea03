// Warps, free-form deformations and dense displacement fields, all in voxel units.
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <cstring>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "bspline.hpp"
#include "interpolate.hpp"
#include "jacobian.hpp"
#include "mapped_rows.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "shared/inverse.hpp"

namespace {

using namespace regweave;
using Vector = std::array<double, 3>;
constexpr Matrix kIdentity{{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}}};

void require_field(const In<float, 4>& u, const char* name) {
    require_volume(u, name);
    require(u.shape(0) == 3, "a field must have shape (3, X, Y, Z)");
}

Out<float> warp(In<float, 3> image, In<double, 2> matrix, In<float, 4> field, float fill, bool clamp) {
    require_field(field, "field");
    const Matrix map = matrix_of(matrix);
    const Sampler sampler = sampler_of(grid_shape(image));
    const Shape n = grid_shape(field);
    NewArray<float, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        for_each_row(map, field, [&](const RowPositions& at, RowCells& cells, std::size_t offset) {
            float* target = out.data.get() + offset;
            sampler.locate(at, cells);
            sampler.sample(image.data(), cells, target);
            if (clamp) return;
            std::vector<std::uint8_t> inside(n[2]);
            sampler.inside(at, inside.data());
            for (std::size_t k = 0; k < n[2]; ++k) target[k] = inside[k] ? target[k] : fill;
        });
    }
    return out.release();
}

Out<std::uint8_t> warp_valid(Shape shape, In<double, 2> matrix, In<float, 4> field) {
    require_field(field, "field");
    const Matrix map = matrix_of(matrix);
    const Sampler sampler = sampler_of(shape);
    NewArray<std::uint8_t, 3> out(grid_shape(field));
    {
        nb::gil_scoped_release nogil;
        for_each_row(map, field, [&](const RowPositions& at, RowCells&, std::size_t offset) {
            sampler.inside(at, out.data.get() + offset);
        });
    }
    return out.release();
}

template <typename Choose>
Out<std::int32_t> warp_by(const In<std::int32_t, 3>& labels, const In<double, 2>& matrix,
                          const In<float, 4>& field, std::int32_t fill, const Choose& choose) {
    require_field(field, "field");
    const Matrix map = matrix_of(matrix);
    const Sampler sampler = sampler_of(grid_shape(labels));
    const Shape n = grid_shape(field);
    NewArray<std::int32_t, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        for_each_row(map, field, [&](const RowPositions& at, RowCells& cells, std::size_t offset) {
            std::int32_t* target = out.data.get() + offset;
            std::vector<std::uint8_t> inside(n[2]);
            sampler.locate(at, cells);
            sampler.inside(at, inside.data());
            for (std::size_t k = 0; k < n[2]; ++k) {
                target[k] = inside[k] ? choose(sampler.cell(cells, k)) : fill;
            }
        });
    }
    return out.release();
}

Out<std::int32_t> warp_nearest(In<std::int32_t, 3> labels, In<double, 2> matrix, In<float, 4> field,
                               std::int32_t fill) {
    return warp_by(labels, matrix, field, fill,
                   [&](const Cell& cell) { return cell.nearest(labels.data()); });
}

Out<std::int32_t> warp_labels(In<std::int32_t, 3> labels, In<double, 2> matrix, In<float, 4> field) {
    return warp_by(labels, matrix, field, 0, [&](const Cell& cell) { return cell.voted(labels.data()); });
}

Out<float> ffd(In<float, 4> coefficients, Vector origin, Vector spacing, Shape shape) {
    const std::size_t c = coefficients.shape(0);
    const Shape nodes = require_volume(coefficients, "the lattice");
    const auto axes = lattice_axes(shape, nodes, origin, spacing);
    NewArray<float, 4> out({c, shape[0], shape[1], shape[2]});
    {
        nb::gil_scoped_release nogil;
        // Last axis first: the long lines of the other two passes then run over contiguous voxels.
        Buffer<float> lines(c * nodes[0] * nodes[1] * shape[2]);
        Buffer<float> planes(c * nodes[0] * shape[1] * shape[2]);
        multiply_axis(axes[2], coefficients.data(), lines.data(), c * nodes[0] * nodes[1], 1);
        multiply_axis(axes[1], lines.data(), planes.data(), c * nodes[0], shape[2]);
        multiply_axis(axes[0], planes.data(), out.data.get(), c, shape[1] * shape[2]);
    }
    return out.release();
}

Out<float> ffd_adjoint(In<float, 4> dense, Vector origin, Vector spacing, Shape nodes) {
    const std::size_t c = dense.shape(0);
    const Shape n = require_volume(dense, "the dense array");
    const auto axes = lattice_axes(n, nodes, origin, spacing);
    NewArray<float, 4> out({c, nodes[0], nodes[1], nodes[2]});
    {
        nb::gil_scoped_release nogil;
        Buffer<float> planes(c * nodes[0] * n[1] * n[2]);
        Buffer<float> lines(c * nodes[0] * nodes[1] * n[2]);
        multiply_axis(axes[0].transposed(), dense.data(), planes.data(), c, n[1] * n[2]);
        multiply_axis(axes[1].transposed(), planes.data(), lines.data(), c * nodes[0], n[2]);
        multiply_axis(axes[2].transposed(), lines.data(), out.data.get(), c * nodes[0] * nodes[1], 1);
    }
    return out.release();
}

Out<float> compose(In<float, 4> u, In<float, 4> d) {
    require_field(u, "u");
    require_field(d, "d");
    const Shape n = grid_shape(d);
    require(grid_shape(u) == n, "u and d must have one shape");
    const Sampler sampler = sampler_of(n);
    const std::size_t volume = n[0] * n[1] * n[2];
    NewArray<float, 4> out({3, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        for_each_row(kIdentity, d, [&](const RowPositions& at, RowCells& cells, std::size_t offset) {
            sampler.locate(at, cells);
            for (int a = 0; a < 3; ++a) {
                const float* increment = d.data() + a * volume + offset;
                float* target = out.data.get() + a * volume + offset;
                sampler.sample(u.data() + a * volume, cells, target);
                for (std::size_t k = 0; k < n[2]; ++k) target[k] += increment[k];
            }
        });
    }
    return out.release();
}

// Where samples at scale · y + offset fall on an axis of n voxels: the cell, clamped to the axis, and the way
// through it.
struct AxisCells {
    std::vector<std::int32_t> cell;
    std::vector<float> fraction;
    std::size_t step;  // to the other end of a cell

    AxisCells(std::size_t n, std::size_t samples, double scale, double offset)
        : cell(samples), fraction(samples), step(n > 1) {
        for (std::size_t s = 0; s < samples; ++s) {
            const AxisCell axis(scale * double(s) + offset, int(n));
            cell[s] = axis.cell;
            fraction[s] = float(axis.fraction);
        }
    }
};

// A row between four: a step along x and one along y away from the first.
void mix_rows(const float* low, std::size_t step_x, std::size_t step_y, float fx, float fy, std::size_t n,
              float* __restrict out) {
    const float *p01 = low + step_y, *p10 = low + step_x, *p11 = low + step_x + step_y;
    for (std::size_t k = 0; k < n; ++k) out[k] = mix(mix(low[k], p01[k], fy), mix(p10[k], p11[k], fy), fx);
}

Out<float> resample_field(In<float, 4> u, Shape shape, Vector scale, Vector offset) {
    const std::size_t c = u.shape(0);
    const Shape n = require_volume(u, "u");
    require_grid(shape, "the grid of the result");
    require_finite(scale, "scale must be finite");
    require_finite(offset, "offset must be finite");
    const AxisCells x(n[0], shape[0], scale[0], offset[0]), y(n[1], shape[1], scale[1], offset[1]),
        z(n[2], shape[2], scale[2], offset[2]);
    NewArray<float, 4> out({c, shape[0], shape[1], shape[2]});
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(shape[0]), [&](int i) {
            std::vector<float> row(n[2] + 1);
            for (std::size_t a = 0; a < c; ++a)
                for (std::size_t j = 0; j < shape[1]; ++j) {
                    const float* low = u.data() + ((a * n[0] + x.cell[i]) * n[1] + y.cell[j]) * n[2];
                    mix_rows(low, x.step * n[1] * n[2], y.step * n[2], x.fraction[i], y.fraction[j], n[2],
                             row.data());
                    row[n[2]] = row[n[2] - 1];
                    float* target = out.data.get() + ((a * shape[0] + i) * shape[1] + j) * shape[2];
                    for (std::size_t k = 0; k < shape[2]; ++k) {
                        const float* p = &row[z.cell[k]];
                        target[k] = mix(p[0], p[1], z.fraction[k]);
                    }
                }
        });
    }
    return out.release();
}

Out<float> jacobian(In<float, 4> u) {
    require_field(u, "u");
    const Shape n = grid_shape(u);
    NewArray<float, 3> out(n);
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(n[0]), [&](int i) {
            JacobianRow row(u.data(), n);
            for (std::size_t j = 0; j < n[1]; ++j) row(i, j, out.data.get() + (i * n[1] + j) * n[2]);
        });
    }
    return out.release();
}

std::tuple<Out<float>, Out<float>> invert(In<float, 4> u, In<double, 2> matrix, In<double, 2> inverse_matrix,
                                          Shape shape, int max_iter, double tolerance) {
    require_field(u, "u");
    require(max_iter >= 1 && tolerance >= 0.0, "max_iter must be 1 or more, the tolerance 0 or more");
    const Matrix map = matrix_of(matrix), back = matrix_of(inverse_matrix);
    const int voxels[3] = {int(u.shape(1)), int(u.shape(2)), int(u.shape(3))};
    const std::size_t volume = require_grid(shape, "the grid of the result");
    NewArray<float, 4> out({3, shape[0], shape[1], shape[2]});
    NewArray<float, 3> residual(shape);
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(shape[0]), [&](int i) {
            for (std::size_t j = 0; j < shape[1]; ++j) {
                double shift[3] = {0.0, 0.0, 0.0};  // of the neighbour before: a start close to the solution
                for (std::size_t k = 0; k < shape[2]; ++k) {
                    const double q[3] = {double(i), double(j), double(k)};
                    double r[3], p[3], image[3];
                    back.apply(q, r);
                    for (int a = 0; a < 3; ++a) p[a] = r[a] + shift[a];
                    const double error = invert_point(voxels, u.data(), r, p, max_iter, tolerance);
                    map.apply(p, image);
                    const std::size_t at = (i * shape[1] + j) * shape[2] + k;
                    residual.data[at] = float(error);
                    for (int a = 0; a < 3; ++a) {
                        shift[a] = error <= tolerance ? p[a] - r[a] : 0.0;
                        out.data[a * volume + at] = float(image[a] - q[a]);
                    }
                }
            }
        });
    }
    return {out.release(), residual.release()};
}

}  // namespace

void register_deformation(nb::module_& m) {
    m.def("warp", &warp, nb::arg("image"), nb::arg("matrix"), nb::arg("field"), nb::arg("fill"),
          nb::arg("clamp"),
          "Sample image (A, B, C) trilinearly at matrix · (x + field(x)); outside: the border if clamp, else "
          "fill.");
    m.def("warp_valid", &warp_valid, nb::arg("shape"), nb::arg("matrix"), nb::arg("field"),
          "1 where matrix · (x + field(x)) lies inside a grid of that shape, half a voxel of rim included.");
    m.def("warp_nearest", &warp_nearest, nb::arg("labels"), nb::arg("matrix"), nb::arg("field"),
          nb::arg("fill"), "Take the nearest voxel's label; fill outside.");
    m.def("warp_labels", &warp_labels, nb::arg("labels"), nb::arg("matrix"), nb::arg("field"),
          "Take the label with the largest sum of trilinear weights; 0 outside.");
    m.def("ffd", &ffd, nb::arg("coefficients"), nb::arg("origin"), nb::arg("spacing"), nb::arg("shape"),
          "Evaluate cubic B-splines (C, nx, ny, nz), control points at origin + index * spacing, on voxels.");
    m.def("ffd_adjoint", &ffd_adjoint, nb::arg("dense"), nb::arg("origin"), nb::arg("spacing"),
          nb::arg("nodes"), "Apply the transpose of ffd to a dense array (C, X, Y, Z).");
    m.def("compose", &compose, nb::arg("u"), nb::arg("d"), "Return d(x) + u(x + d(x)), trilinear, clamped.");
    m.def("resample_field", &resample_field, nb::arg("u"), nb::arg("shape"), nb::arg("scale"),
          nb::arg("offset"), "Sample u (C, X, Y, Z) at scale * y + offset for each voxel y of shape.");
    m.def(
        "invert", &invert, nb::arg("u"), nb::arg("matrix"), nb::arg("inverse_matrix"), nb::arg("shape"),
        nb::arg("max_iter"), nb::arg("tolerance"),
        "Solve matrix · (p + u(p)) = q for each voxel q of shape; return matrix · p - q and |p + u(p) - r|.");
    m.def("jacobian", &jacobian, nb::arg("u"), "det(I + du/dx), central differences, one-sided at borders.");
}
