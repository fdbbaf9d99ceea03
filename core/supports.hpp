// What every cost-volume kernel is given: two feature images, the supports of the nodes, the labels.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "shared/body.hpp"

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

    // d voxels along an axis of n voxels. Further out there is nothing but repeated edge voxels.
    static Shift of(double d, int n) {
        require(std::isfinite(d), "displacements must be finite");
        const double whole = std::floor(d), reach = n;
        return {int(std::clamp(whole, -reach - 1, reach)), float(d - whole)};
    }
};

struct Job {
    int channels;
    int dim[3];
    const float* fixed;
    const float* moved;
    Supports supports;
    std::vector<Shift> shift[3];
    std::vector<char>
        needed;  // by node; empty means all. The cost of the others is zero, whatever the label.

    bool needs(std::size_t node) const { return needed.empty() || needed[node]; }

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
    require_volume(fixed, "the fixed features");
    job.channels = int(fixed.shape(0));
    for (int axis = 0; axis < 4; ++axis)
        require(fixed.shape(axis) == moved.shape(axis), "fixed and moved features differ in shape");
    const std::array<std::size_t, 3> labels{dx.shape(0), dy.shape(0), dz.shape(0)};
    require_grid(labels, "the set of labels");
    require_grid(std::array<std::size_t, 3>{sx.shape(0), sy.shape(0), sz.shape(0)}, "the grid of nodes");
    job.fixed = fixed.data();
    job.moved = moved.data();
    const Starts* starts[3] = {&sx, &sy, &sz};
    const Displacements* displacements[3] = {&dx, &dy, &dz};
    for (int axis = 0; axis < 3; ++axis) {
        job.dim[axis] = int(fixed.shape(axis + 1));
        job.supports.n[axis] = int(starts[axis]->shape(0));
        job.supports.size[axis] = size[axis];
        require(size[axis] >= 1 && size[axis] <= job.dim[axis],
                "a support must have a voxel along each axis and no more than the image");
        int before = 0;
        for (std::size_t i = 0; i < starts[axis]->shape(0); ++i) {
            const int start = (*starts[axis])(i);
            require(start >= before && start <= job.dim[axis] - size[axis],
                    "supports must ascend and lie inside the image");
            job.supports.start[axis].push_back(before = start);
        }
        for (std::size_t i = 0; i < displacements[axis]->shape(0); ++i)
            job.shift[axis].push_back(Shift::of((*displacements[axis])(i), job.dim[axis]));
    }
    return job;
}

// value(p, q, r) of every support, (p, q, r) being its first voxel.
template <class T, class Value>
std::vector<T> by_support(const Supports& s, const Value& value) {
    std::vector<T> out(std::size_t(s.n[0]) * s.n[1] * s.n[2]);
    parallel_for(s.n[0], [&](int p) {
        std::size_t node = std::size_t(p) * s.n[1] * s.n[2];
        for (int q : s.start[1])
            for (int r : s.start[2]) out[node++] = value(s.start[0][p], q, r);
    });
    return out;
}

// Supports whose cost is not zero for all labels by itself: in the others both images have one and the same
// value wherever a label can look. Much of a medical image is such background.
inline std::vector<char> not_blank(const Job& job) {
    const Supports& s = job.supports;
    int reach[3][2];
    for (int axis = 0; axis < 3; ++axis) {
        reach[axis][0] = reach[axis][1] = 0;
        for (const Shift& d : job.shift[axis]) {
            reach[axis][0] = std::min(reach[axis][0], d.whole);
            reach[axis][1] = std::max(reach[axis][1], d.whole + 1);
        }
    }
    auto has_other = [&](const float* image, const int* begin, const int* end, float value) {
        for (int x = begin[0]; x < end[0]; ++x)
            for (int y = begin[1]; y < end[1]; ++y) {
                const float* row = image + job.plane() * x + std::size_t(job.dim[2]) * y;
                if (std::any_of(row + begin[2], row + end[2], [value](float v) { return v != value; }))
                    return true;
            }
        return false;
    };
    return by_support<char>(s, [&](int p, int q, int r) {
        const int at[3] = {p, q, r};
        int begin[3], end[3], first[3], last[3];
        for (int axis = 0; axis < 3; ++axis) {
            begin[axis] = at[axis];
            end[axis] = at[axis] + s.size[axis];
            first[axis] = std::clamp(begin[axis] + reach[axis][0], 0, job.dim[axis] - 1);
            last[axis] = std::clamp(end[axis] + reach[axis][1], first[axis] + 1, job.dim[axis]);
        }
        for (int c = 0; c < job.channels; ++c) {
            const float* fixed = job.fixed + c * job.volume();
            const float value = fixed[job.plane() * p + std::size_t(job.dim[2]) * q + r];
            if (has_other(fixed, begin, end, value)) return char(1);
            if (has_other(job.moved + c * job.volume(), first, last, value)) return char(1);
        }
        return char(0);
    });
}

// Rows (i, j) of the image that some needed support holds.
inline std::vector<char> needed_rows(const Job& job) {
    const Supports& s = job.supports;
    std::vector<char> rows(std::size_t(job.dim[0]) * job.dim[1], 0);
    for (int p = 0; p < s.n[0]; ++p)
        for (int q = 0; q < s.n[1]; ++q) {
            bool any = false;
            for (int r = 0; r < s.n[2]; ++r) any |= job.needs((std::size_t(p) * s.n[1] + q) * s.n[2] + r);
            for (int i = s.start[0][p]; any && i < s.start[0][p] + s.size[0]; ++i)
                std::fill_n(&rows[std::size_t(i) * job.dim[1] + s.start[1][q]], s.size[1], 1);
        }
    return rows;
}

// Plane i of the moved image, shifted along the first axis (edge voxels repeat outside).
inline void shift_plane(const Job& job, const float* image, int i, Shift s, float* out) {
    const int last = job.dim[0] - 1;
    const float* a = image + job.plane() * std::clamp(i + s.whole, 0, last);
    const float* b = image + job.plane() * std::clamp(i + s.whole + 1, 0, last);
    const std::size_t n = job.plane();
    for (std::size_t k = 0; k < n; ++k) out[k] = between(a[k], b[k], s.fraction);
}

// Row j of a plane, shifted along the second axis and padded along the third; out has dim[2] + 2 pad values.
inline void shift_row(const Job& job, const float* plane, int j, Shift s, int pad, float* out) {
    const int last = job.dim[1] - 1, nz = job.dim[2];
    const float* a = plane + std::size_t(nz) * std::clamp(j + s.whole, 0, last);
    const float* b = plane + std::size_t(nz) * std::clamp(j + s.whole + 1, 0, last);
    float* row = out + pad;
    for (int k = 0; k < nz; ++k) row[k] = between(a[k], b[k], s.fraction);
    std::fill(out, row, row[0]);
    std::fill(row + nz, row + nz + pad, row[nz - 1]);
}

}  // namespace regweave
