// Cost volumes whose node value needs the voxels of the support themselves: MI (a histogram) and DWT (a
// transform).
//
// For each label the image streams through in planes; as many planes as a support is deep stay in a ring, and
// each support is handed to the op when its last plane has come in.
#pragma once

#include "parallel.hpp"
#include "supports.hpp"

namespace regweave {

// Op::Voxel is what the ring holds. op.row(in, fraction, i, j, out, n) makes a row of it from in[v] +
// fraction * (in[v + 1] - in[v]); op.patch(rows, stride, scratch) gets the first voxel of each plane of the
// support and returns the cost.
template <class Op>
void patch_volume(const Job& job, const Op& op, float* out) {
    using Voxel = typename Op::Voxel;
    const int ny = job.dim[1], nz = job.dim[2];
    const Supports& s = job.supports;
    const int Ky = int(job.shift[1].size()), Kz = int(job.shift[2].size()), L = job.n_labels();
    const int pad = job.pad(), depth = s.size[0];
    const std::size_t stride = nz;
    const std::vector<char> needed = needed_rows(job);

    constexpr int kChunk = 4;  // supports along x of a task: more tasks than labels alone would give
    const int chunks = (s.n[0] + kChunk - 1) / kChunk;

    parallel_for(int(job.shift[0].size()) * Ky * chunks, [&](int task) {
        const int a = task / chunks / Ky, b = task / chunks % Ky;
        const int first = task % chunks * kChunk, last = std::min(s.n[0], first + kChunk);
        std::vector<float> plane(job.plane()), row(nz + 2 * pad);
        std::vector<Voxel> ring(std::size_t(Kz) * depth * ny * stride);
        typename Op::Scratch scratch(op);
        std::vector<const Voxel*> planes(depth);
        int next = first;  // next support along x to finish
        for (int i = s.start[0][first]; next < last; ++i) {
            shift_plane(job, job.moved, i, job.shift[0][a], plane.data());
            for (int j = 0; j < ny; ++j) {
                if (!needed[std::size_t(i) * ny + j]) continue;
                shift_row(job, plane.data(), j, job.shift[1][b], pad, row.data());
                for (int k = 0; k < Kz; ++k) {
                    const Shift z = job.shift[2][k];
                    const float* in = row.data() + pad + z.whole;
                    op.row(in, z.fraction, i, j,
                           &ring[((std::size_t(k) * depth + i % depth) * ny + j) * stride], nz);
                }
            }
            for (; next < last && i + 1 == s.start[0][next] + depth; ++next)
                for (int k = 0; k < Kz; ++k)
                    for (int q = 0; q < s.n[1]; ++q)
                        for (int r = 0; r < s.n[2]; ++r) {
                            const std::size_t node = (std::size_t(next) * s.n[1] + q) * s.n[2] + r;
                            float& cost = out[node * L + (std::size_t(a) * Ky + b) * Kz + k];
                            if (!job.needs(node)) {
                                cost = 0.0f;
                                continue;
                            }
                            for (int d = 0; d < depth; ++d)
                                planes[d] =
                                    &ring[((std::size_t(k) * depth + (s.start[0][next] + d) % depth) * ny +
                                           s.start[1][q]) *
                                              stride +
                                          s.start[2][r]];
                            cost = op.patch(planes.data(), stride, scratch);
                        }
        }
    });
}

}  // namespace regweave
