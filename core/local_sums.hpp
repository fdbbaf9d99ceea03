// Sums over the cube of side 2r + 1 round each voxel, zero outside the image; its own transpose.
#pragma once

#include <algorithm>
#include <vector>

#include "parallel.hpp"

namespace regweave {

struct Extent {
    int nx, ny, nz;
    std::size_t plane() const { return std::size_t(ny) * nz; }
    std::size_t volume() const { return plane() * nx; }
};

// out may not be in. Along y and z inside each plane first, then along x over rows.
inline void local_sums(const float* in, float* out, float* scratch, Extent n, int r) {
    parallel_for(n.nx, [&](int i) {
        std::vector<float> row(n.nz + 2 * r, 0.0f);
        std::vector<float> plane(n.plane());
        for (int j = 0; j < n.ny; ++j) {
            const float* p = in + n.plane() * i + std::size_t(j) * n.nz;
            std::copy(p, p + n.nz, row.begin() + r);
            float* q = &plane[std::size_t(j) * n.nz];
            for (int k = 0; k < n.nz; ++k) q[k] = row[k];
            for (int d = 1; d <= 2 * r; ++d)
                for (int k = 0; k < n.nz; ++k) q[k] += row[k + d];
        }
        for (int j = 0; j < n.ny; ++j) {
            float* q = scratch + n.plane() * i + std::size_t(j) * n.nz;
            std::fill(q, q + n.nz, 0.0f);
            for (int d = std::max(0, j - r); d <= std::min(n.ny - 1, j + r); ++d) {
                const float* p = &plane[std::size_t(d) * n.nz];
                for (int k = 0; k < n.nz; ++k) q[k] += p[k];
            }
        }
    });
    parallel_for(n.nx, [&](int i) {
        float* q = out + n.plane() * i;
        std::fill(q, q + n.plane(), 0.0f);
        for (int d = std::max(0, i - r); d <= std::min(n.nx - 1, i + r); ++d) {
            const float* p = scratch + n.plane() * d;
            for (std::size_t v = 0; v < n.plane(); ++v) q[v] += p[v];
        }
    });
}

// Voxels of the cube that lie inside the image.
inline float local_count(Extent n, int r, int i, int j, int k) {
    auto along = [r](int p, int size) { return std::min(size - 1, p + r) - std::max(0, p - r) + 1; };
    return float(along(i, n.nx) * along(j, n.ny) * along(k, n.nz));
}

}  // namespace regweave
