// Cubic B-splines of a lattice of control points over a grid of voxels, on a GPU: one sparse matrix for each
// axis.
#pragma once

#include "array.hpp"
#include "bspline.hpp"
#include "sampling.hpp"

namespace regweave::gpu {

// A sparse matrix on the GPU: starts of the rows, columns, weights.
struct AxisRows {
    Array start, column, weight;
    int rows, columns;
    AxisMatrix host;

    AxisRows(const std::shared_ptr<Queue>& queue, const AxisMatrix& m);
    void multiply(const float* in, float* out, Index outer, Index inner) const;
};

class Lattice {
  public:
    Lattice(std::shared_ptr<Queue> queue, std::array<double, 3> origin, std::array<double, 3> spacing,
            std::array<std::size_t, 3> nodes, std::array<std::size_t, 3> shape);

    // Displacement of each voxel, (C, X, Y, Z), for that of the control points, (C, nodes).
    Array displacement(const Array& coefficients) const;
    // The transpose: a value of each control point for values of the voxels.
    Array adjoint(const Array& dense) const;

    // Sparse rows of an axis: the control points of each voxel.
    const AxisRows& rows(int axis) const { return rows_[std::size_t(axis)]; }
    // Of its transpose: the voxels of each control point.
    const AxisRows& transposed(int axis) const { return transposed_[std::size_t(axis)]; }
    const std::array<std::size_t, 3>& nodes() const { return nodes_; }
    const std::array<std::size_t, 3>& shape() const { return shape_; }

  private:
    std::array<std::size_t, 3> nodes_, shape_;
    std::vector<AxisRows> rows_, transposed_;
};

}  // namespace regweave::gpu
