// Free-form deformation in tiles: the three products of a block of voxels, or of control points, follow each
// other in shared memory. The order of every sum is that of the plain bodies.
#pragma once

#include "deform.hpp"
#include "descent.hpp"

namespace regweave::gpu {

constexpr int kBlockY = 8, kBlockZ = 32;  // values of a tile along the last two axes, one thread for each

// Sparse rows of an axis.
struct SparseRows {
    const std::int32_t* start;
    const std::int32_t* column;
    const float* weight;
    int rows, columns;
};

// u ∘ (id + δ), δ the free-form deformation of the coefficients.
struct TileStep {
    SparseRows axis[3];
    const float* coefficients;  // (3, nodes)
    const float* u;
    Extent grid;
    float* out;
    int reach_x, reach_y;  // the most control points of a tile along the first two axes
};

// Gradient by the control points from the force, unstretched, and its squared length.
struct TileGradient {
    SparseRows axis[3];  // transposed: a row for each control point
    const float* force;  // (3, X, Y, Z)
    Extent grid;
    float stretch[3];
    float* g;  // (3, nodes)
    double* squared;
    int reach_y, reach_z;  // the most voxels of a tile along the last two axes
};

// Values of a tile along the first axis: few where there are few tiles.
inline int tile_depth(const int* n) {
    const Index across = Index((n[1] + kBlockY - 1) / kBlockY) * ((n[2] + kBlockZ - 1) / kBlockZ);
    return across * ((n[0] + 7) / 8) >= 256 ? 8 : 4;
}

inline Index tile_blocks(const int* n, int depth) {
    return Index((n[0] + depth - 1) / depth) * ((n[1] + kBlockY - 1) / kBlockY) *
           ((n[2] + kBlockZ - 1) / kBlockZ);
}

// The most columns that so many neighbouring rows reach over; 0 where a row is empty, which tiles do not
// know.
template <class Axis>
int widest(const Axis& a, int rows) {
    int most_columns = 0;
    const int n = int(a.n_rows());
    for (int r = 0; r < n; ++r)
        if (a.start[r] == a.start[r + 1]) return 0;
    for (int r = 0; r < n; r += rows)
        most_columns =
            most(most_columns, int(a.column[a.start[least(r + rows, n)] - 1] - a.column[a.start[r]]) + 1);
    return most_columns;
}

#if defined(__CUDACC__)

// The first column that the rows of a tile reach, which come in ascending order.
__device__ __forceinline__ int first_column(const SparseRows& a, int row) { return a.column[a.start[row]]; }
__device__ __forceinline__ int columns_of(const SparseRows& a, int begin, int end) {
    return a.column[a.start[end] - 1] - a.column[a.start[begin]] + 1;
}

template <int kDepth>
__device__ __forceinline__ void tile_step(const TileStep& a) {
    extern __shared__ float memory[];
    const Extent& g = a.grid;
    const int tiles_z = (g.n[2] + kBlockZ - 1) / kBlockZ, tiles_y = (g.n[1] + kBlockY - 1) / kBlockY;
    const int z0 = (blockIdx.x % tiles_z) * kBlockZ, y0 = (blockIdx.x / tiles_z % tiles_y) * kBlockY;
    const int x0 = blockIdx.x / (tiles_z * tiles_y) * kDepth;
    const int t = threadIdx.x, ty = t / kBlockZ, tz = t % kBlockZ, x1 = min(x0 + kDepth, g.n[0]);
    const int y1 = min(y0 + kBlockY, g.n[1]), nodes_y = a.axis[1].columns, nodes_z = a.axis[2].columns;
    const int low_x = first_column(a.axis[0], x0), low_y = first_column(a.axis[1], y0);
    const int size_x = columns_of(a.axis[0], x0, x1), size_y = columns_of(a.axis[1], y0, y1);
    const bool mine_z = z0 + tz < g.n[2], mine = mine_z && y0 + ty < g.n[1];
    float* lines = memory;                                     // (size_x, size_y, kBlockZ)
    float* planes = memory + a.reach_x * a.reach_y * kBlockZ;  // (size_x, kBlockY, kBlockZ)
    const int z_begin = mine_z ? a.axis[2].start[z0 + tz] : 0,
              z_end = mine_z ? a.axis[2].start[z0 + tz + 1] : 0;
    const int y_begin = mine ? a.axis[1].start[y0 + ty] : 0, y_end = mine ? a.axis[1].start[y0 + ty + 1] : 0;
    float d[3][kDepth];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* source = a.coefficients + Index(c) * a.axis[0].columns * nodes_y * nodes_z;
        for (int line = ty; line < size_x * size_y; line += kBlockY) {
            const int i = low_x + line / size_y, j = low_y + line % size_y;
            const float* p = source + (Index(i) * nodes_y + j) * nodes_z;
            float sum = 0.0f;
            for (int e = z_begin; e < z_end; ++e) sum += a.axis[2].weight[e] * p[a.axis[2].column[e]];
            lines[line * kBlockZ + tz] = sum;
        }
        __syncthreads();
        for (int i = 0; i < size_x; ++i) {
            float sum = 0.0f;
            for (int e = y_begin; e < y_end; ++e)
                sum += a.axis[1].weight[e] * lines[(i * size_y + a.axis[1].column[e] - low_y) * kBlockZ + tz];
            planes[(i * kBlockY + ty) * kBlockZ + tz] = sum;
        }
        // Each thread reads its own column only.
#pragma unroll
        for (int x = 0; x < kDepth; ++x) {
            float sum = 0.0f;
            if (x0 + x < x1)
                for (int e = a.axis[0].start[x0 + x]; e < a.axis[0].start[x0 + x + 1]; ++e)
                    sum += a.axis[0].weight[e] *
                           planes[((a.axis[0].column[e] - low_x) * kBlockY + ty) * kBlockZ + tz];
            d[c][x] = sum;
        }
        __syncthreads();
    }
    if (!mine) return;
    const Index volume = g.volume();
#pragma unroll
    for (int x = 0; x < kDepth; ++x) {
        if (x0 + x >= x1) break;
        const double p[3] = {x0 + x + double(d[0][x]), y0 + ty + double(d[1][x]), z0 + tz + double(d[2][x])};
        const Cell cell(g, p);
        const Index v = g.at(x0 + x, y0 + ty, z0 + tz);
#pragma unroll
        for (int c = 0; c < 3; ++c) a.out[c * volume + v] = cell.sample(a.u + c * volume) + d[c][x];
    }
}

template <int kDepth>
__device__ __forceinline__ void tile_gradient(const TileGradient& a) {
    extern __shared__ float memory[];
    const int n[3] = {a.axis[0].rows, a.axis[1].rows, a.axis[2].rows};
    const int tiles_z = (n[2] + kBlockZ - 1) / kBlockZ, tiles_y = (n[1] + kBlockY - 1) / kBlockY;
    const int z0 = (blockIdx.x % tiles_z) * kBlockZ, y0 = (blockIdx.x / tiles_z % tiles_y) * kBlockY;
    const int x0 = blockIdx.x / (tiles_z * tiles_y) * kDepth;
    const int x1 = min(x0 + kDepth, n[0]), y1 = min(y0 + kBlockY, n[1]), z1 = min(z0 + kBlockZ, n[2]);
    const int t = threadIdx.x, ty = t / kBlockZ, tz = t % kBlockZ;
    const int low_y = first_column(a.axis[1], y0), low_z = first_column(a.axis[2], z0);
    const int size_y = columns_of(a.axis[1], y0, y1), size_z = columns_of(a.axis[2], z0, z1);
    const bool mine = y0 + ty < n[1] && z0 + tz < n[2];
    float* planes = memory;                                  // (kDepth, size_y, size_z)
    float* lines = memory + kDepth * a.reach_y * a.reach_z;  // (kDepth, kBlockY, size_z)
    float g[3][kDepth];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* source = a.force + c * a.grid.volume();
        for (int e = t; e < kDepth * size_y * size_z; e += kBlockY * kBlockZ) {
            const int k = e % size_z, j = e / size_z % size_y, x = e / (size_z * size_y);
            float sum = 0.0f;
            if (x0 + x < x1) {
                const float* p = source + Index(low_y + j) * a.grid.n[2] + low_z + k;
                for (int s = a.axis[0].start[x0 + x]; s < a.axis[0].start[x0 + x + 1]; ++s)
                    sum += a.axis[0].weight[s] * p[Index(a.axis[0].column[s]) * a.grid.n[1] * a.grid.n[2]];
            }
            planes[e] = sum;
        }
        __syncthreads();
        for (int e = t; e < kDepth * kBlockY * size_z; e += kBlockY * kBlockZ) {
            const int k = e % size_z, j = e / size_z % kBlockY, x = e / (size_z * kBlockY);
            float sum = 0.0f;
            if (y0 + j < y1)
                for (int s = a.axis[1].start[y0 + j]; s < a.axis[1].start[y0 + j + 1]; ++s)
                    sum +=
                        a.axis[1].weight[s] * planes[(x * size_y + a.axis[1].column[s] - low_y) * size_z + k];
            lines[e] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int x = 0; x < kDepth; ++x) {
            float sum = 0.0f;
            if (mine)
                for (int s = a.axis[2].start[z0 + tz]; s < a.axis[2].start[z0 + tz + 1]; ++s)
                    sum += a.axis[2].weight[s] *
                           lines[(x * kBlockY + ty) * size_z + a.axis[2].column[s] - low_z];
            g[c][x] = sum;
        }
        __syncthreads();
    }
    if (!mine) return;
    const Index nodes = Index(n[0]) * n[1] * n[2];
#pragma unroll
    for (int x = 0; x < kDepth; ++x) {
        if (x0 + x >= x1) break;
        const Index i = (Index(x0 + x) * n[1] + y0 + ty) * n[2] + z0 + tz;
        double s = 0.0;
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            const float value = g[c][x] / a.stretch[c];
            a.g[c * nodes + i] = value;
            s += double(value) * double(value);
        }
        a.squared[i] = s;
    }
}

#define REGWEAVE_TILES(kDepth)                                                                              \
    extern "C" __global__ void __launch_bounds__(256) regweave_TileStep##kDepth(const TileStep a) {         \
        tile_step<kDepth>(a);                                                                               \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) regweave_TileGradient##kDepth(const TileGradient a) { \
        tile_gradient<kDepth>(a);                                                                           \
    }
REGWEAVE_TILES(4)
REGWEAVE_TILES(8)

#endif

}  // namespace regweave::gpu
