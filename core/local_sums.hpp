// Sums over the cube of side 2r + 1 round each voxel, zero outside the image; its own transpose.
//
// The image is cut into tiles of planes and rows. A tile marches along x: rows are summed along z, then along
// y, and the sums of the last 2r + 1 planes are kept in a ring whose sum is the answer. Each sum runs over
// its voxels in one order, so neither tiles nor threads change a bit.
#pragma once

#include <algorithm>
#include <vector>

#include "memory.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace regweave {

struct Extent {
    int nx, ny, nz;
    std::size_t plane() const { return std::size_t(ny) * nz; }
    std::size_t volume() const { return plane() * nx; }
    std::size_t row(int i, int j) const { return plane() * i + std::size_t(j) * nz; }
};

// Voxels of the cube that lie inside the image, along one axis.
inline int local_count(int n, int r, int p) { return std::min(n - 1, p + r) - std::max(0, p - r) + 1; }

// out[k] = the sum of some lines at k, in their order.
template <int Lines>
inline void add_lines(const float* const* lines, std::size_t n, float* __restrict out) {
    const float* p[Lines];
    for (int c = 0; c < Lines; ++c) p[c] = lines[c];
    for (std::size_t k = 0; k < n; ++k) {
        float sum = p[0][k];
        for (int c = 1; c < Lines; ++c) sum += p[c][k];
        out[k] = sum;
    }
}

inline void add_lines(const float* const* lines, int count, std::size_t n, float* __restrict out) {
    switch (count) {
        case 1:
            return add_lines<1>(lines, n, out);
        case 2:
            return add_lines<2>(lines, n, out);
        case 3:
            return add_lines<3>(lines, n, out);
        case 4:
            return add_lines<4>(lines, n, out);
        case 5:
            return add_lines<5>(lines, n, out);
        case 6:
            return add_lines<6>(lines, n, out);
        case 7:
            return add_lines<7>(lines, n, out);
        default:
            add_lines<7>(lines, n, out);
            for (int c = 7; c < count; ++c)
                for (std::size_t k = 0; k < n; ++k) out[k] += lines[c][k];
    }
}

// Sum of a row, eight voxels at a time.
inline double row_sum(const float* row, int n) {
    V8 lanes = {};
    int k = 0;
    for (; k + 8 <= n; k += 8) lanes += load8(row + k);
    double sum = sum8(lanes);
    for (; k < n; ++k) sum += row[k];
    return sum;
}

// Tiles of a volume; their size depends on its shape alone.
struct Tiles {
    Extent n;
    int planes, rows, along_x, along_y;

    explicit Tiles(Extent n_) : n(n_) {
        rows = std::min(n.ny, std::max(4, std::min(16, 4096 / n.nz)));  // the ring stays in cache
        along_x = (n.nx + 23) / 24;
        planes = (n.nx + along_x - 1) / along_x;  // of about one size, so that threads end together
        along_y = (n.ny + rows - 1) / rows;
    }
    int count() const { return along_x * along_y; }
};

// One tile of Q images. source(i, j, row, stride) writes row (i, j) of image q to row + q * stride; sink(i,
// j, sums) gets the sums of that row, nz of them for each image.
template <int Q, class Source, class Sink>
class TileSums {
  public:
    TileSums(const Tiles& tiles, int tile, int r, const Source& source, const Sink& sink)
        : n_(tiles.n),
          r_(r),
          width_(std::size_t(Q) * tiles.n.nz),
          first_x_(std::min(n_.nx, tile / tiles.along_y * tiles.planes)),
          last_x_(std::min(n_.nx, first_x_ + tiles.planes)),
          first_y_(tile % tiles.along_y * tiles.rows),
          last_y_(std::min(n_.ny, first_y_ + tiles.rows)),
          low_y_(std::max(0, first_y_ - r)),
          high_y_(std::min(n_.ny, last_y_ + r)),
          depth_(std::min(2 * r + 1, n_.nx)),
          source_(source),
          sink_(sink),
          padded_(Q * (std::size_t(n_.nz) + 2 * r), 0.0f),
          z_sums_(width_ * (high_y_ - low_y_)),
          ring_(width_ * (last_y_ - first_y_) * depth_),
          lines_(2 * r + 1) {}

    void run() {
        std::vector<float> sums(width_);
        int next = std::max(0, first_x_ - r_);  // plane to bring in
        for (int i = first_x_; i < last_x_; ++i) {
            for (; next <= std::min(n_.nx - 1, i + r_); ++next) bring_in(next);
            for (int j = first_y_; j < last_y_; ++j) {
                int count = 0;
                for (int d = std::max(0, i - r_); d < next; ++d) lines_[count++] = ring_row(d, j);
                add_lines(lines_.data(), count, width_, sums.data());
                sink_(i, j, sums.data());
            }
        }
    }

  private:
    Extent n_;
    int r_;
    std::size_t width_;
    int first_x_, last_x_, first_y_, last_y_, low_y_, high_y_, depth_;
    const Source& source_;
    const Sink& sink_;
    std::vector<float> padded_;
    Buffer<float> z_sums_, ring_;
    std::vector<const float*> lines_;

    float* ring_row(int i, int j) {
        return &ring_[width_ * (std::size_t(i % depth_) * (last_y_ - first_y_) + (j - first_y_))];
    }

    void bring_in(int i) {
        const std::size_t stride = n_.nz + 2 * std::size_t(r_);
        for (int j = low_y_; j < high_y_; ++j) {
            source_(i, j, &padded_[r_], stride);
            for (int q = 0; q < Q; ++q) {
                for (int d = 0; d <= 2 * r_; ++d) lines_[d] = &padded_[q * stride + d];
                add_lines(lines_.data(), 2 * r_ + 1, n_.nz,
                          &z_sums_[width_ * (j - low_y_) + std::size_t(q) * n_.nz]);
            }
        }
        for (int j = first_y_; j < last_y_; ++j) {
            int count = 0;
            for (int d = std::max(low_y_, j - r_); d < std::min(high_y_, j + r_ + 1); ++d)
                lines_[count++] = &z_sums_[width_ * (d - low_y_)];
            add_lines(lines_.data(), count, width_, ring_row(i, j));
        }
    }
};

template <int Q, class Source, class Sink>
void tile_sums(const Tiles& tiles, int tile, int r, const Source& source, const Sink& sink) {
    TileSums<Q, Source, Sink>(tiles, tile, r, source, sink).run();
}

}  // namespace regweave
