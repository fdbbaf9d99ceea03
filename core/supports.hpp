// What every cost-volume kernel is given: two feature images, the supports of the nodes, the labels.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

namespace regweave {

// The support of node (a, b, c) is the box [start[0][a], start[0][a] + size[0]) × …, inside the image.
struct Supports {
    int n[3];
    std::vector<int> start[3];
    int size[3];

    int voxels() const { return size[0] * size[1] * size[2]; }
};

// A label moves the image by a whole number of voxels plus a fraction, the same for all voxels.
struct Shift {
    int whole;
    float fraction;
};

struct Job {
    int channels;
    int dim[3];
    const float* fixed;
    const float* moved;
    Supports supports;
    std::vector<Shift> shift[3];

    int n_labels() const { return int(shift[0].size() * shift[1].size() * shift[2].size()); }
    std::size_t plane() const { return std::size_t(dim[1]) * dim[2]; }
    std::size_t volume() const { return plane() * dim[0]; }
    // Row-padding that holds every shift along the last axis.
    int pad() const {
        int p = 1;
        for (const Shift& s : shift[2]) p = std::max({p, -s.whole, s.whole + 1});
        return p;
    }
};

using Starts = In<std::int32_t, 1>;
using Displacements = In<double, 1>;

inline Job make_job(In<float, 4> fixed, In<float, 4> moved, Starts sx, Starts sy, Starts sz,
                    std::array<int, 3> size, Displacements dx, Displacements dy, Displacements dz) {
    Job job;
    job.channels = int(fixed.shape(0));
    for (int axis = 0; axis < 4; ++axis)
        if (fixed.shape(axis) != moved.shape(axis))
            throw std::invalid_argument("fixed and moved features differ in shape");
    job.fixed = fixed.data();
    job.moved = moved.data();
    const Starts* starts[3] = {&sx, &sy, &sz};
    const Displacements* displacements[3] = {&dx, &dy, &dz};
    for (int axis = 0; axis < 3; ++axis) {
        job.dim[axis] = int(fixed.shape(axis + 1));
        job.supports.n[axis] = int(starts[axis]->shape(0));
        job.supports.size[axis] = size[axis];
        int before = 0;
        for (std::size_t i = 0; i < starts[axis]->shape(0); ++i) {
            const int start = (*starts[axis])(i);
            if (start < before || start + size[axis] > job.dim[axis])
                throw std::invalid_argument("supports must ascend and lie inside the image");
            job.supports.start[axis].push_back(before = start);
        }
        for (std::size_t i = 0; i < displacements[axis]->shape(0); ++i) {
            const double d = (*displacements[axis])(i), whole = std::floor(d);
            job.shift[axis].push_back({int(whole), float(d - whole)});
        }
    }
    return job;
}

// Plane i of the moved image, shifted along the first axis (edge voxels repeat outside).
inline void shift_plane(const Job& job, const float* image, int i, Shift s, float* out) {
    const int last = job.dim[0] - 1;
    const float* a = image + job.plane() * std::clamp(i + s.whole, 0, last);
    const float* b = image + job.plane() * std::clamp(i + s.whole + 1, 0, last);
    const std::size_t n = job.plane();
    for (std::size_t k = 0; k < n; ++k) out[k] = a[k] + s.fraction * (b[k] - a[k]);
}

// Row j of a plane, shifted along the second axis and padded along the third; out has dim[2] + 2 pad values.
inline void shift_row(const Job& job, const float* plane, int j, Shift s, int pad, float* out) {
    const int last = job.dim[1] - 1, nz = job.dim[2];
    const float* a = plane + std::size_t(nz) * std::clamp(j + s.whole, 0, last);
    const float* b = plane + std::size_t(nz) * std::clamp(j + s.whole + 1, 0, last);
    float* row = out + pad;
    for (int k = 0; k < nz; ++k) row[k] = a[k] + s.fraction * (b[k] - a[k]);
    std::fill(out, row, row[0]);
    std::fill(row + nz, row + nz + pad, row[nz - 1]);
}

}  // namespace regweave
