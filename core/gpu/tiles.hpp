// Free-form deformation in tiles: the three products of a block of voxels, or of control points, follow each
// other in shared memory. The order of every sum is that of the plain bodies.
#pragma once

#include "deform.hpp"
#include "descent.hpp"

namespace regweave::gpu {

constexpr int kBlockY = 8, kBlockZ = 32;  // values of a tile along the last two axes, one thread for each
constexpr int kMostColumns = 24;          // columns that its rows along the first axis may reach over
constexpr int kMostTerms = 6;             // terms of a row of the transpose

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

// The most terms of a row.
template <class Axis>
int longest(const Axis& a) {
    int found = 0;
    for (int r = 0; r < int(a.n_rows()); ++r) found = most(found, int(a.start[r + 1] - a.start[r]));
    return found;
}

#if defined(__CUDACC__)

// The first column that the rows of a tile reach, and how many: rows are neighbouring columns, ascending.
__device__ __forceinline__ int first_column(const SparseRows& a, int row) { return a.column[a.start[row]]; }
__device__ __forceinline__ int columns_of(const SparseRows& a, int begin, int end) {
    return a.column[a.start[end] - 1] - a.column[a.start[begin]] + 1;
}

// A row in registers: weights and places of its terms; those beyond its end weigh nothing.
template <int kTerms>
struct Taps {
    float weight[kTerms];
    int place[kTerms];

    __device__ __forceinline__ Taps(const SparseRows& a, int row, bool mine, int low, int size) {
        const int begin = mine ? a.start[row] : 0, n = mine ? a.start[row + 1] - begin : 0;
#pragma unroll
        for (int e = 0; e < kTerms; ++e) {
            weight[e] = e < n ? a.weight[begin + e] : 0.0f;
            place[e] = n ? min(a.column[begin] + e - low, size - 1) : 0;
        }
    }
};

// Weights of the rows of a tile by columns, (columns, kDepth), in shared memory.
template <int kDepth>
__device__ __forceinline__ void spread_rows(const SparseRows& a, int begin, int end, int low, int size,
                                            float (*table)[kDepth]) {
    for (int e = threadIdx.x; e < size * kDepth; e += kBlockY * kBlockZ) {
        const int column = low + e / kDepth, row = begin + e % kDepth;
        float found = 0.0f;
        if (row < end) {
            const int term = column - a.column[a.start[row]];
            if (term >= 0 && term < a.start[row + 1] - a.start[row]) found = a.weight[a.start[row] + term];
        }
        table[e / kDepth][e % kDepth] = found;
    }
}

// Where a block's tile begins.
struct Corner {
    int x, y, z;

    __device__ __forceinline__ Corner(const int* n, int depth) {
        const int tiles_z = (n[2] + kBlockZ - 1) / kBlockZ, tiles_y = (n[1] + kBlockY - 1) / kBlockY;
        z = (blockIdx.x % tiles_z) * kBlockZ;
        y = (blockIdx.x / tiles_z % tiles_y) * kBlockY;
        x = blockIdx.x / (tiles_z * tiles_y) * depth;
    }
};

template <int kDepth>
__device__ __forceinline__ void tile_step(const TileStep& a) {
    extern __shared__ float lines[];  // (size_x, size_y, kBlockZ)
    __shared__ float table[kMostColumns][kDepth];
    const Extent& g = a.grid;
    const Corner at(g.n, kDepth);
    const int ty = threadIdx.x / kBlockZ, tz = threadIdx.x % kBlockZ, y = at.y + ty, z = at.z + tz;
    const int x1 = min(at.x + kDepth, g.n[0]), y1 = min(at.y + kBlockY, g.n[1]);
    const int nodes_y = a.axis[1].columns, nodes_z = a.axis[2].columns;
    const int low_x = first_column(a.axis[0], at.x), low_y = first_column(a.axis[1], at.y);
    const int size_x = columns_of(a.axis[0], at.x, x1), size_y = columns_of(a.axis[1], at.y, y1);
    const bool mine = y < g.n[1] && z < g.n[2];
    const Taps<4> tap_y(a.axis[1], y, y < g.n[1], low_y, size_y), tap_z(a.axis[2], z, z < g.n[2], 0, nodes_z);
    spread_rows<kDepth>(a.axis[0], at.x, x1, low_x, size_x, table);
    float d[3][kDepth];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* source = a.coefficients + (Index(c) * a.axis[0].columns + low_x) * nodes_y * nodes_z;
        __syncthreads();
        int i = 0, j = ty;
        for (int line = ty; line < size_x * size_y; line += kBlockY, j += kBlockY) {
            while (j >= size_y) j -= size_y, ++i;
            const float* p = source + (i * nodes_y + low_y + j) * nodes_z;
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e) sum += tap_z.weight[e] * p[tap_z.place[e]];
            lines[line * kBlockZ + tz] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int x = 0; x < kDepth; ++x) d[c][x] = 0.0f;
        for (int k = 0; k < size_x; ++k) {
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sum += tap_y.weight[e] * lines[(k * size_y + tap_y.place[e]) * kBlockZ + tz];
#pragma unroll
            for (int x = 0; x < kDepth; ++x) d[c][x] += table[k][x] * sum;
        }
    }
    if (!mine) return;
    const Index volume = g.volume();
#pragma unroll
    for (int x = 0; x < kDepth; ++x) {
        if (at.x + x >= x1) break;
        const double p[3] = {at.x + x + double(d[0][x]), y + double(d[1][x]), z + double(d[2][x])};
        const Cell cell(g.n, p);
        const Index v = g.at(at.x + x, y, z);
#pragma unroll
        for (int c = 0; c < 3; ++c) a.out[c * volume + v] = cell.sample(a.u + c * volume) + d[c][x];
    }
}

template <int kDepth>
__device__ __forceinline__ void tile_gradient(const TileGradient& a) {
    extern __shared__ float memory[];
    __shared__ float table[kMostColumns][kDepth];
    const int n[3] = {a.axis[0].rows, a.axis[1].rows, a.axis[2].rows};
    const Corner at(n, kDepth);
    const int ty = threadIdx.x / kBlockZ, tz = threadIdx.x % kBlockZ, y = at.y + ty, z = at.z + tz;
    const int x1 = min(at.x + kDepth, n[0]), y1 = min(at.y + kBlockY, n[1]), z1 = min(at.z + kBlockZ, n[2]);
    const int low_x = first_column(a.axis[0], at.x), low_y = first_column(a.axis[1], at.y),
              low_z = first_column(a.axis[2], at.z);
    const int size_x = columns_of(a.axis[0], at.x, x1), size_y = columns_of(a.axis[1], at.y, y1),
              size_z = columns_of(a.axis[2], at.z, z1);
    const bool mine = y < n[1] && z < n[2];
    const Taps<kMostTerms> tap_y(a.axis[1], y, y < n[1], low_y, size_y),
        tap_z(a.axis[2], z, z < n[2], low_z, size_z);
    spread_rows<kDepth>(a.axis[0], at.x, x1, low_x, size_x, table);
    float* planes = memory;                                  // (kDepth, size_y, size_z)
    float* lines = memory + kDepth * a.reach_y * a.reach_z;  // (kDepth, kBlockY, size_z)
    const int stride = a.grid.n[1] * a.grid.n[2];
    float g[3][kDepth];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* source =
            a.force + c * a.grid.volume() + Index(low_x) * stride + low_y * a.grid.n[2] + low_z;
        __syncthreads();
        for (int j = ty; j < size_y; j += kBlockY)
            for (int k = tz; k < size_z; k += kBlockZ) {
                const float* p = source + j * a.grid.n[2] + k;
                float sum[kDepth];
#pragma unroll
                for (int x = 0; x < kDepth; ++x) sum[x] = 0.0f;
#pragma unroll 4
                for (int i = 0; i < size_x; ++i) {
                    const float value = p[i * stride];
#pragma unroll
                    for (int x = 0; x < kDepth; ++x) sum[x] += table[i][x] * value;
                }
#pragma unroll
                for (int x = 0; x < kDepth; ++x) planes[(x * size_y + j) * size_z + k] = sum[x];
            }
        __syncthreads();
        for (int k = tz; k < size_z; k += kBlockZ)
#pragma unroll
            for (int x = 0; x < kDepth; ++x) {
                float sum = 0.0f;
#pragma unroll
                for (int e = 0; e < kMostTerms; ++e)
                    sum += tap_y.weight[e] * planes[(x * size_y + tap_y.place[e]) * size_z + k];
                lines[(x * kBlockY + ty) * size_z + k] = sum;
            }
        __syncwarp();  // a warp has the lines of its own ty alone
#pragma unroll
        for (int x = 0; x < kDepth; ++x) {
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < kMostTerms; ++e)
                sum += tap_z.weight[e] * lines[(x * kBlockY + ty) * size_z + tap_z.place[e]];
            g[c][x] = sum;
        }
    }
    if (!mine) return;
    const Index nodes = Index(n[0]) * n[1] * n[2];
#pragma unroll
    for (int x = 0; x < kDepth; ++x) {
        if (at.x + x >= x1) break;
        const Index i = (Index(at.x + x) * n[1] + y) * n[2] + z;
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
