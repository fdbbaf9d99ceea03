// Local correlation by marching: a block of threads walks along the first axis, sums each plane in shared
// memory and keeps the last 2r + 1 planes in registers. The order of every sum is that of the plain bodies.
#pragma once

#include "correlation.hpp"

namespace regweave::gpu {

constexpr int kTileY = 8, kTileZ = 32;  // voxels of a block across the march, one thread for each
constexpr int kMarchRadius = 3;         // the largest that there are kernels for

struct MarchSlopes {
    Slopes slopes;
    const float* f;
    const float* m;
    int chunk;  // planes of a block
};

struct MarchForce {
    Pull pull;
    const float* in;  // (3, X, Y, Z): α, β, γ
    int chunk;
};

// Planes of a block that give enough of them to fill a GPU.
inline int march_chunk(const Extent& g) {
    const Index tiles = Index((g.n[1] + kTileY - 1) / kTileY) * ((g.n[2] + kTileZ - 1) / kTileZ);
    int chunk = 32;
    while (chunk > 4 && tiles * ((g.n[0] + chunk - 1) / chunk) < 512) chunk /= 2;
    return chunk;
}

inline Index march_blocks(const Extent& g, int chunk) {
    return Index((g.n[1] + kTileY - 1) / kTileY) * ((g.n[2] + kTileZ - 1) / kTileZ) *
           ((g.n[0] + chunk - 1) / chunk);
}

#if defined(__CUDACC__)

// Walks over the planes of a chunk. Plane holds a plane of `kChannels` values with a rim of R voxels;
// sums_z(plane, row, column, out) sums three quantities along a row; done(v, x, s) takes the sums of a cube.
template <int R, int kChannels, class Load, class SumsZ, class Done>
__device__ __forceinline__ void march(const Extent& g, int chunk, const Load& load, const SumsZ& sums_z,
                                      const Done& done) {
    constexpr int kHighY = kTileY + 2 * R, kHighZ = kTileZ + 2 * R;
    __shared__ float plane[kChannels][kHighY][kHighZ];
    __shared__ float rows[3][kHighY][kTileZ];
    const int tiles_z = (g.n[2] + kTileZ - 1) / kTileZ, tiles_y = (g.n[1] + kTileY - 1) / kTileY;
    const int tile = blockIdx.x % (tiles_z * tiles_y), z0 = (tile % tiles_z) * kTileZ,
              y0 = (tile / tiles_z) * kTileY;
    const int x0 = (blockIdx.x / (tiles_z * tiles_y)) * chunk, x1 = min(x0 + chunk, g.n[0]);
    const int t = threadIdx.x, ty = t / kTileZ, tz = t % kTileZ;
    const bool mine = y0 + ty < g.n[1] && z0 + tz < g.n[2];
    // Places of this thread's voxels in a plane with its rim, -1 outside; their values wait in registers
    // while the plane before is summed.
    constexpr int kItems = (kHighY * kHighZ + kTileY * kTileZ - 1) / (kTileY * kTileZ);
    int place[kItems];
    float next[kItems][kChannels];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        const int e = t + k * kTileY * kTileZ, y = y0 + e / kHighZ - R, z = z0 + e % kHighZ - R;
        place[k] = e < kHighY * kHighZ && y >= 0 && y < g.n[1] && z >= 0 && z < g.n[2] ? y * g.n[2] + z : -1;
    }
    const auto fetch = [&](int x) {
        if (x < 0 || x >= g.n[0]) return;
#pragma unroll
        for (int k = 0; k < kItems; ++k)
#pragma unroll
            for (int c = 0; c < kChannels; ++c)
                next[k][c] = place[k] >= 0 ? load(c, x * g.n[1] * g.n[2] + place[k]) : 0.0f;
    };
    float ring[2 * R + 1][3];
#pragma unroll
    for (int d = 0; d < 2 * R; ++d) ring[d + 1][0] = ring[d + 1][1] = ring[d + 1][2] = 0.0f;
    fetch(x0 - R);
    for (int x = x0 - R; x < x1 + R; ++x) {
#pragma unroll
        for (int d = 0; d < 2 * R; ++d)
#pragma unroll
            for (int q = 0; q < 3; ++q) ring[d][q] = ring[d + 1][q];
        float s[3] = {0.0f, 0.0f, 0.0f};
        const bool here = x >= 0 && x < g.n[0];
        if (here) {
            // Threads have left the plane before at the barrier after its rows were written.
#pragma unroll
            for (int k = 0; k < kItems; ++k) {
                const int e = t + k * kTileY * kTileZ;
                if (e < kHighY * kHighZ)
#pragma unroll
                    for (int c = 0; c < kChannels; ++c) (&plane[c][0][0])[e] = next[k][c];
            }
            __syncthreads();
        }
        if (x + 1 < x1 + R) fetch(x + 1);
        if (here) {
            for (int e = t; e < kHighY * kTileZ; e += kTileY * kTileZ) {
                float a[3] = {0.0f, 0.0f, 0.0f};
                sums_z(plane, e / kTileZ, e % kTileZ, a);
#pragma unroll
                for (int q = 0; q < 3; ++q) rows[q][e / kTileZ][e % kTileZ] = a[q];
            }
            __syncthreads();
#pragma unroll
            for (int d = 0; d <= 2 * R; ++d)
#pragma unroll
                for (int q = 0; q < 3; ++q) s[q] += rows[q][ty + d][tz];
        }
#pragma unroll
        for (int q = 0; q < 3; ++q) ring[2 * R][q] = s[q];
        if (x - R >= x0 && mine) {
            float cube[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int d = 0; d <= 2 * R; ++d)
#pragma unroll
                for (int q = 0; q < 3; ++q) cube[q] += ring[d][q];
            const int at[3] = {x - R, y0 + ty, z0 + tz};
            done(int(g.at(at[0], at[1], at[2])), at, cube);
        }
    }
}

template <int R>
__device__ __forceinline__ void march_slopes(const MarchSlopes& a) {
    march<R, 2>(
        a.slopes.grid, a.chunk, [&](int c, int v) { return c ? a.m[v] : a.f[v]; },
        [](const auto& plane, int row, int column, float* s) {
#pragma unroll
            for (int d = 0; d <= 2 * R; ++d) {
                const float fixed = plane[0][row][column + d], moved = plane[1][row][column + d];
                s[0] += moved;
                s[1] += moved * moved;
                s[2] += fixed * moved;
            }
        },
        [&](int v, const int* x, const float* s) { a.slopes.finish(v, x, s); });
}

template <int R>
__device__ __forceinline__ void march_force(const MarchForce& a) {
    const Index volume = a.pull.grid.volume();
    march<R, 3>(
        a.pull.grid, a.chunk, [&](int c, int v) { return a.in[c * volume + v]; },
        [](const auto& plane, int row, int column, float* s) {
#pragma unroll
            for (int d = 0; d <= 2 * R; ++d)
#pragma unroll
                for (int q = 0; q < 3; ++q) s[q] += plane[q][row][column + d];
        },
        [&](int v, const int*, const float* s) { a.pull.finish(v, s); });
}

#define REGWEAVE_MARCH(R)                                                                            \
    extern "C" __global__ void __launch_bounds__(256) regweave_MarchSlopes##R(const MarchSlopes a) { \
        march_slopes<R>(a);                                                                          \
    }                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) regweave_MarchForce##R(const MarchForce a) {   \
        march_force<R>(a);                                                                           \
    }
REGWEAVE_MARCH(1)
REGWEAVE_MARCH(2)
REGWEAVE_MARCH(3)

#endif

}  // namespace regweave::gpu
