// Cost volumes whose node value depends on sums over the support: SAD, NCC, NGF, class shares, overlaps.
//
// For each label the image streams through in planes; each row's terms are added to the windows that hold it,
// first along y, then along x, and the short z sums come last, so that every hot loop runs along contiguous
// rows.
#pragma once

#include "parallel.hpp"
#include "supports.hpp"

namespace regweave {

// First window that ends after position i, and one past the last that starts at or before it.
struct Active {
    int begin, end;
};

inline std::vector<Active> active_windows(const std::vector<int>& start, int size, int dim) {
    std::vector<Active> out(dim);
    const int n = int(start.size());
    for (int i = 0; i < dim; ++i) {
        int begin = 0, end = 0;
        while (begin < n && start[begin] + size <= i) ++begin;
        while (end < n && start[end] <= i) ++end;
        out[i] = {begin, end};
    }
    return out;
}

// Op::terms sums are kept per node and label. Op::rows(w, j, t, n, channels, stride_w, stride_j) writes the
// terms of one row, t[term][n]; op.finish(sums, node) turns the sums of a support into the cost.
template <class Op>
void box_volume(const Job& job, const Op& op, float* out) {
    constexpr int T = Op::terms;
    const int nx = job.dim[0], ny = job.dim[1], nz = job.dim[2], C = job.channels;
    const Supports& s = job.supports;
    const int Ky = int(job.shift[1].size()), Kz = int(job.shift[2].size()), L = job.n_labels();
    const int pad = job.pad(), padded = nz + 2 * pad;
    const auto active_x = active_windows(s.start[0], s.size[0], nx);
    const auto active_y = active_windows(s.start[1], s.size[1], ny);
    const std::size_t sheet = std::size_t(T) * s.n[1] * nz;  // one label's sums over y windows

    parallel_for(int(job.shift[0].size()) * Ky, [&](int task) {
        const int a = task / Ky, b = task % Ky;
        std::vector<float> plane(C * job.plane()), row(std::size_t(C) * padded), shifted(std::size_t(C) * nz);
        std::vector<float> terms(std::size_t(T) * nz), y_sums(Kz * sheet);
        int widest = 1;
        for (const Active& w : active_x) widest = std::max(widest, w.end - w.begin);
        std::vector<float> x_sums(widest * Kz * sheet);
        std::vector<double> sums(T);

        for (int i = 0; i < nx; ++i) {
            const Active windows = active_x[i];
            if (windows.begin == windows.end) continue;
            for (int c = 0; c < C; ++c)
                shift_plane(job, job.moved + c * job.volume(), i, job.shift[0][a], &plane[c * job.plane()]);
            std::fill(y_sums.begin(), y_sums.end(), 0.0f);
            for (int j = 0; j < ny; ++j) {
                if (active_y[j].begin == active_y[j].end) continue;
                for (int c = 0; c < C; ++c)
                    shift_row(job, &plane[c * job.plane()], j, job.shift[1][b], pad,
                              &row[std::size_t(c) * padded]);
                const float* fixed = job.fixed + job.plane() * i + std::size_t(nz) * j;
                for (int k = 0; k < Kz; ++k) {
                    const Shift z = job.shift[2][k];
                    for (int c = 0; c < C; ++c) {
                        const float* in = &row[std::size_t(c) * padded] + pad + z.whole;
                        float* w = &shifted[std::size_t(c) * nz];
                        for (int v = 0; v < nz; ++v) w[v] = in[v] + z.fraction * (in[v + 1] - in[v]);
                    }
                    op.rows(shifted.data(), fixed, terms.data(), nz, C, nz, job.volume());
                    for (int t = 0; t < T; ++t) {
                        const float* term = &terms[std::size_t(t) * nz];
                        for (int q = active_y[j].begin; q < active_y[j].end; ++q) {
                            float* sum = &y_sums[k * sheet + (std::size_t(t) * s.n[1] + q) * nz];
                            for (int v = 0; v < nz; ++v) sum[v] += term[v];
                        }
                    }
                }
            }
            for (int p = windows.begin; p < windows.end; ++p) {
                float* sum = &x_sums[(p % widest) * Kz * sheet];
                const std::size_t n = Kz * sheet;
                if (i == s.start[0][p])
                    std::copy(y_sums.begin(), y_sums.end(), sum);
                else
                    for (std::size_t v = 0; v < n; ++v) sum[v] += y_sums[v];
                if (i + 1 < s.start[0][p] + s.size[0]) continue;
                for (int k = 0; k < Kz; ++k)
                    for (int q = 0; q < s.n[1]; ++q)
                        for (int r = 0; r < s.n[2]; ++r) {
                            const std::size_t node = (std::size_t(p) * s.n[1] + q) * s.n[2] + r;
                            for (int t = 0; t < T; ++t) {
                                const float* line =
                                    sum + k * sheet + (std::size_t(t) * s.n[1] + q) * nz + s.start[2][r];
                                double total = 0;
                                for (int v = 0; v < s.size[2]; ++v) total += line[v];
                                sums[t] = total;
                            }
                            out[node * L + (std::size_t(a) * Ky + b) * Kz + k] = op.finish(sums.data(), node);
                        }
            }
        }
    });
}

}  // namespace regweave
