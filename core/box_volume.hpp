// Cost volumes whose node value depends on sums over the support: SAD, NCC, NGF, class shares, overlaps.
//
// For each label the image streams through in planes; each row's terms are added to the windows that hold it,
// first along y, then along x, and the short z sums come last, so that every hot loop runs along contiguous
// rows.
#pragma once

#include <type_traits>

#include "parallel.hpp"
#include "simd.hpp"
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

// The rows of one window along y, from the moved image (shifted along x and y, padded along z) and the fixed
// one.
struct WindowRows {
    const float* moved;
    const float* fixed;
    std::size_t moved_channel, fixed_channel;  // strides
    int moved_row, fixed_row;
    int rows;
    float fraction;  // of the shift along z

    // Op::add(sums, channels, w, f) adds the terms of one voxel, w(c) and f(c) being its features. Channels
    // is their number, which the compiler knows where it is a type.
    template <class V, class Op, class Channels>
    void sum(const Op& op, Channels channels, int z, float* out, int nz) const {
        V sums[Op::terms] = {};
        const float *m = moved + z, *f = fixed + z;
        for (int j = 0; j < rows; ++j, m += moved_row, f += fixed_row)
            op.add(
                sums, channels,
                [&](int c) {
                    const V here = load<V>(m + c * moved_channel), next = load<V>(m + c * moved_channel + 1);
                    return between(here, next, fraction);
                },
                [&](int c) { return load<V>(f + c * fixed_channel); });
        for (int t = 0; t < Op::terms; ++t) store(out + std::size_t(t) * nz + z, sums[t]);
    }
};

// Cost volume of a box cost of shared/costs.hpp, whose moments, two for each node, may be null.
template <class Op>
class BoxVolume {
  public:
    BoxVolume(const Job& job, const Op& op, const double* moments, float* out)
        : job_(job),
          op_(op),
          moments_(moments),
          out_(out),
          nz_(job.dim[2]),
          pad_(job.pad()),
          Ky_(int(job.shift[1].size())),
          Kz_(int(job.shift[2].size())),
          sheet_(std::size_t(Op::terms) * job.supports.n[1] * nz_),
          active_(active_windows(job.supports.start[0], job.supports.size[0], job.dim[0])),
          needed_(needed_rows(job)) {
        for (const Active& w : active_) widest_ = std::max(widest_, w.end - w.begin);
    }

    void run() const {
        const int n = job_.supports.n[0], chunks = (n + kChunk - 1) / kChunk;
        parallel_for(int(job_.shift[0].size()) * Ky_ * chunks, [&](int task) {
            const int label = task / chunks, first = task % chunks * kChunk;
            stream(label / Ky_, label % Ky_, first, std::min(n, first + kChunk));
        });
    }

  private:
    static constexpr int kChunk = 4;  // windows along x of a task: more tasks than labels alone would give

    const Job& job_;
    const Op& op_;
    const double* moments_;
    float* out_;
    int nz_, pad_, Ky_, Kz_;
    std::size_t sheet_;  // sums of one label over the windows along y
    std::vector<Active> active_;
    std::vector<char> needed_;  // rows; a window whose first row nobody needs is not needed either
    int widest_ = 1;

    // All labels with shift a along x and b along y, for the windows along x from one to another.
    void stream(int a, int b, int first, int last) const {
        const Supports& s = job_.supports;
        const int C = job_.channels, ny = job_.dim[1];
        const std::size_t padded = nz_ + 2 * pad_, shifted = ny * padded;
        std::vector<float> plane(job_.plane()), rows(C * shifted + 8);
        std::vector<float> y_sums(Kz_ * sheet_), x_sums(widest_ * Kz_ * sheet_);
        for (int i = s.start[0][first]; i < s.start[0][last - 1] + s.size[0]; ++i) {
            const Active here{std::max(active_[i].begin, first), std::min(active_[i].end, last)};
            if (here.begin >= here.end) continue;
            for (int c = 0; c < C; ++c) {
                shift_plane(job_, job_.moved + c * job_.volume(), i, job_.shift[0][a], plane.data());
                for (int j = 0; j < ny; ++j)
                    if (needed_[std::size_t(i) * ny + j])
                        shift_row(job_, plane.data(), j, job_.shift[1][b], pad_,
                                  &rows[c * shifted + j * padded]);
            }
            for (int k = 0; k < Kz_; ++k)
                for (int q = 0; q < s.n[1]; ++q) {
                    const Shift z = job_.shift[2][k];
                    const int j = s.start[1][q];
                    if (!needed_[std::size_t(i) * ny + j]) continue;
                    WindowRows window{rows.data() + j * padded + pad_ + z.whole,
                                      job_.fixed + job_.plane() * i + std::size_t(nz_) * j,
                                      shifted,
                                      job_.volume(),
                                      int(padded),
                                      nz_,
                                      s.size[1],
                                      z.fraction};
                    sum_window(window, &y_sums[k * sheet_ + std::size_t(q) * Op::terms * nz_]);
                }
            for (int p = here.begin; p < here.end; ++p) {
                float* sum = &x_sums[(p % widest_) * Kz_ * sheet_];
                const std::size_t n = Kz_ * sheet_;
                if (i == s.start[0][p])
                    std::copy(y_sums.begin(), y_sums.end(), sum);
                else
                    for (std::size_t v = 0; v < n; ++v) sum[v] += y_sums[v];
                if (i + 1 == s.start[0][p] + s.size[0]) finish(sum, p, a, b);
            }
        }
    }

    void sum_window(const WindowRows& window, float* out) const {
        if (job_.channels == 1)
            sum_window(window, std::integral_constant<int, 1>{}, out);
        else
            sum_window(window, job_.channels, out);
    }

    template <class Channels>
    void sum_window(const WindowRows& window, Channels channels, float* out) const {
        int z = 0;
        for (; z + 8 <= nz_; z += 8) window.template sum<V8>(op_, channels, z, out, nz_);
        for (; z < nz_; ++z) window.template sum<float>(op_, channels, z, out, nz_);
    }

    void finish(const float* sum, int p, int a, int b) const {
        const Supports& s = job_.supports;
        const int L = job_.n_labels();
        double sums[Op::terms];
        for (int k = 0; k < Kz_; ++k)
            for (int q = 0; q < s.n[1]; ++q)
                for (int r = 0; r < s.n[2]; ++r) {
                    const std::size_t node = (std::size_t(p) * s.n[1] + q) * s.n[2] + r;
                    float& cost = out_[node * L + (std::size_t(a) * Ky_ + b) * Kz_ + k];
                    if (!job_.needs(node)) {
                        cost = 0.0f;
                        continue;
                    }
                    for (int t = 0; t < Op::terms; ++t) {
                        const float* line =
                            sum + k * sheet_ + (std::size_t(q) * Op::terms + t) * nz_ + s.start[2][r];
                        double total = 0;
                        for (int v = 0; v < s.size[2]; ++v) total += line[v];
                        sums[t] = total;
                    }
                    cost = op_.finish(sums, moments_ ? moments_ + 2 * node : nullptr);
                }
    }
};

}  // namespace regweave
