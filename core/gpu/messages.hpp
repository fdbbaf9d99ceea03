// Kernels of sequential tree-reweighted message passing, with the messages of core/trws.hpp.
#pragma once

#include "body.hpp"

namespace regweave::gpu {

// A pairwise energy on a grid of nodes; see core/label_grid.hpp.
struct LabelEnergy {
    int shape[3], k[3];
    Index stride[3];
    Index nodes;
    int labels;
    double weight;
    bool chained;  // distances of ascending offsets, the same for all edges: two running minima an axis
    const double* unary;    // (N, L)
    const double* base;     // (N, 3), null in the fluid case
    const double* offsets;  // along each axis, one after the other

    REGWEAVE_BODY const double* offsets_of(int axis) const {
        return offsets + (axis > 0 ? k[0] : 0) + (axis > 1 ? k[1] : 0);
    }
    REGWEAVE_BODY int index_of(int label, int axis) const {
        return axis == 0 ? label / (k[1] * k[2]) : axis == 1 ? label / k[2] % k[1] : label % k[2];
    }
    REGWEAVE_BODY int coordinate(Index s, int axis) const { return int(s / stride[axis] % shape[axis]); }
    REGWEAVE_BODY double shift(Index p, Index q, int axis) const {
        return base ? base[3 * p + axis] - base[3 * q + axis] : 0.0;
    }
    REGWEAVE_BODY double cost(const double* o, int a, int b, double shift) const {
        return weight * fabs(o[a] - o[b] + shift);
    }
    REGWEAVE_BODY double cost(Index p, Index q, int axis, int a, int b) const {
        return cost(offsets_of(axis), a, b, shift(p, q, axis));
    }

    // One axis of a min-plus product: result b of the line f[0], f[pitch], … of the message from s to t.
    REGWEAVE_BODY double minimum_along(const double* f, int pitch, int axis, int b, double shift) const {
        const double* o = offsets_of(axis);
        const int n = k[axis];
        if (!chained) {
            double m = f[0] + cost(o, 0, b, shift);
            for (int a = 1; a < n; ++a) {
                const double v = f[a * pitch] + cost(o, a, b, shift);
                m = v < m ? v : m;
            }
            return m;
        }
        double below = f[0], above = f[(n - 1) * pitch];
        for (int a = 1; a <= b; ++a) {
            const double v = below + cost(o, a - 1, a, 0.0), own = f[a * pitch];
            below = v < own ? v : own;
        }
        for (int a = n - 2; a >= b; --a) {
            const double v = above + cost(o, a, a + 1, 0.0), own = f[a * pitch];
            above = v < own ? v : own;
        }
        return above < below ? above : below;
    }
};

// Energy of labellings, one after the other: what each node adds, its own cost and that of the edges to the
// next nodes.
struct NodeEnergy {
    LabelEnergy e;
    const std::int32_t* labellings;
    double* out;

    REGWEAVE_BODY void operator()(Index v) const {
        const Index first = v / e.nodes * e.nodes, p = v - first;
        const std::int32_t* labels = labellings + first;
        double sum = e.unary[p * e.labels + labels[p]];
        for (int axis = 0; axis < 3; ++axis) {
            if (e.coordinate(p, axis) + 1 >= e.shape[axis]) continue;
            const Index q = p + e.stride[axis];
            for (int along = 0; along < 3; ++along)
                sum += e.cost(p, q, along, e.index_of(labels[p], along), e.index_of(labels[q], along));
        }
        out[v] = sum;
    }
};
REGWEAVE_KERNEL(NodeEnergy)

// Label of the smallest own cost, the first of several, and the largest cost by magnitude.
struct NodeStart {
    const double* unary;
    int labels;
    std::int32_t* best;
    double* largest;

    REGWEAVE_BODY void operator()(Index p) const {
        const double* u = unary + p * labels;
        int at = 0;
        double most = 0;
        for (int l = 0; l < labels; ++l) {
            if (u[l] < u[at]) at = l;
            most = fabs(u[l]) > most ? fabs(u[l]) : most;
        }
        best[p] = at;
        largest[p] = most;
    }
};
REGWEAVE_KERNEL(NodeStart)

// One pass over the nodes in raster order or against it, by one thread: what `regweave_TrwsColumns` must
// equal.
struct TrwsPass {
    LabelEnergy e;
    double* messages;  // (3, N, L): of the edge from a node to the next along an axis
    std::int32_t* labels;
    double* bound;    // what each node adds
    double* scratch;  // (3, L)
    bool forward;

    REGWEAVE_BODY double* message(int axis, Index edge) const {
        return messages + (axis * e.nodes + edge) * e.labels;
    }
    REGWEAVE_BODY bool has(Index s, int axis, bool next) const {
        const int c = e.coordinate(s, axis);
        return next ? c + 1 < e.shape[axis] : c > 0;
    }
    REGWEAVE_BODY void add(double* all, const double* m) const {
        for (int l = 0; l < e.labels; ++l) all[l] += m[l];
    }
    REGWEAVE_BODY double least(const double* v) const {
        double m = v[0];
        for (int l = 1; l < e.labels; ++l) m = v[l] < m ? v[l] : m;
        return m;
    }

    REGWEAVE_BODY int round(Index s, const double* all) const {
        int best = 0;
        double least = 0;
        for (int l = 0; l < e.labels; ++l) {
            double sums[3] = {0, 0, 0};
            for (int along = 0; along < 3; ++along)
                for (int axis = 0; axis < 3; ++axis) {
                    if (!has(s, axis, !forward)) continue;
                    const Index u = forward ? s - e.stride[axis] : s + e.stride[axis];
                    sums[along] += e.cost(s, u, along, e.index_of(l, along), e.index_of(labels[u], along));
                }
            const double value = all[l] + ((sums[0] + sums[1]) + sums[2]);
            if (l == 0 || value < least) {
                least = value;
                best = l;
            }
        }
        return best;
    }

    REGWEAVE_BODY double send(Index s, int axis, double gamma, const double* all) const {
        const Index t = forward ? s + e.stride[axis] : s - e.stride[axis];
        double *m = message(axis, forward ? s : t), *f = scratch + e.labels, *g = f + e.labels;
        for (int l = 0; l < e.labels; ++l) f[l] = gamma * all[l] - m[l];
        const int pitch[3] = {e.k[1] * e.k[2], e.k[2], 1};
        for (int along = 0; along < 3; ++along) {
            const double shift = e.shift(s, t, along);
            for (int l = 0; l < e.labels; ++l) {
                const int b = e.index_of(l, along);
                g[l] = e.minimum_along(f + l - b * pitch[along], pitch[along], along, b, shift);
            }
            double* other = f;
            f = g;
            g = other;
        }
        const double shift = least(f);
        for (int l = 0; l < e.labels; ++l) m[l] = f[l] - shift;
        return shift;
    }

    REGWEAVE_BODY void operator()(Index) const {
        double* all = scratch;
        for (Index i = 0; i < e.nodes; ++i) {
            const Index s = forward ? i : e.nodes - 1 - i;
            int later = 0, earlier = 0;
            for (int l = 0; l < e.labels; ++l) all[l] = e.unary[s * e.labels + l];
            for (int axis = 0; axis < 3; ++axis)
                if (has(s, axis, forward)) {
                    add(all, message(axis, forward ? s : s - e.stride[axis]));
                    ++later;
                }
            labels[s] = round(s, all);
            for (int axis = 0; axis < 3; ++axis)
                if (has(s, axis, !forward)) {
                    add(all, message(axis, forward ? s - e.stride[axis] : s));
                    ++earlier;
                }
            int chains = later > earlier ? later : earlier;
            chains = chains > 1 ? chains : 1;
            const double gamma = 1.0 / chains;
            double sum = chains > later ? (chains - later) * gamma * least(all) : 0.0;
            for (int axis = 0; axis < 3; ++axis)
                if (has(s, axis, forward)) sum += send(s, axis, gamma, all);
            bound[s] = sum;
        }
    }
};
REGWEAVE_KERNEL(TrwsPass)

// The same pass with a block for each column of nodes along the last axis, the columns waiting for each other
// only where raster order makes them: column (i, j) passes node k when (i − 1, j) and (i, j − 1) have passed
// it.
struct TrwsColumns {
    TrwsPass pass;
    int* progress;  // of each column, then the number of columns begun; counts on from pass to pass
    int passes;     // made before
    int groups;     // of threads, a label each: one for each axis of later neighbours, or one for all
};

#if defined(__CUDACC__)

__device__ inline int progress_of(const int* p) {
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline void set_progress(int* p, int v) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ inline void group_barrier(int group, int threads) {
    if (threads == 32)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// Smallest value of a group and its first place; every thread of the group gets it. `spare` has room for one
// value and place of each warp.
__device__ inline double group_minimum(double v, int& place, int group, int l, int threads, double* spare) {
    for (int d = 16; d > 0; d /= 2) {
        const double other = __shfl_xor_sync(0xffffffffu, v, d);
        const int at = __shfl_xor_sync(0xffffffffu, place, d);
        if (other < v || (other == v && at < place)) {
            v = other;
            place = at;
        }
    }
    if (threads == 32) return v;
    const int warps = threads / 32;
    if (l % 32 == 0) {
        spare[2 * (l / 32)] = v;
        spare[2 * (l / 32) + 1] = place;
    }
    group_barrier(group, threads);
    v = spare[0];
    place = int(spare[1]);
    for (int w = 1; w < warps; ++w) {
        const double other = spare[2 * w];
        const int at = int(spare[2 * w + 1]);
        if (other < v || (other == v && at < place)) {
            v = other;
            place = at;
        }
    }
    group_barrier(group, threads);
    return v;
}

extern "C" __global__ void regweave_TrwsColumns(const TrwsColumns c) {
    extern __shared__ double shared[];
    __shared__ int ticket, chosen;
    __shared__ double shifts[4];
    const TrwsPass& p = c.pass;
    const LabelEnergy& e = p.e;
    const int L = e.labels, T = blockDim.x / c.groups, g = threadIdx.x / T, l = threadIdx.x % T;
    const int columns = e.shape[0] * e.shape[1], nz = e.shape[2];
    const bool active = l < L, forward = p.forward;
    double* carry = shared;                        // message to the next node of the column
    double* work = shared + L + g * (2 * L + 64);  // two lines of labels and the spare of a minimum
    double* other = work + L;
    double* spare = work + 2 * L;
    if (threadIdx.x == 0)
        ticket = atomicAdd(c.progress + columns, 1) - c.passes * columns;  // an order, no sum
    __syncthreads();
    const int column = forward ? ticket : columns - 1 - ticket;
    const int i = column / e.shape[1], j = column % e.shape[1];
    const bool has_later[2] = {forward ? i + 1 < e.shape[0] : i > 0, forward ? j + 1 < e.shape[1] : j > 0};
    const bool has_earlier[2] = {forward ? i > 0 : i + 1 < e.shape[0], forward ? j > 0 : j + 1 < e.shape[1]};
    const int sign = forward ? 1 : -1;
    const int before[2] = {column - sign * e.shape[1], column - sign};
    int mine[3];
    for (int axis = 0; axis < 3; ++axis) mine[axis] = e.index_of(active ? l : 0, axis);
    const int pitch[3] = {e.k[1] * e.k[2], e.k[2], 1};
    for (int step = 0; step < nz; ++step) {
        const Index s = Index(column) * nz + (forward ? step : nz - 1 - step);
        const bool later[3] = {has_later[0], has_later[1], step + 1 < nz};
        const bool earlier[3] = {has_earlier[0], has_earlier[1], step > 0};
        double all = active ? e.unary[s * L + l] : 0.0, sent[3];
        for (int axis = 0; axis < 3; ++axis) {
            const Index edge = forward ? s : s - e.stride[axis];
            sent[axis] = later[axis] && active ? __ldcg(p.message(axis, edge) + l) : 0.0;
            if (later[axis]) all += sent[axis];
        }
        if (threadIdx.x < 2 && has_earlier[threadIdx.x])
            while (progress_of(c.progress + before[threadIdx.x]) < c.passes * nz + step + 1) {
            }
        __syncthreads();
        double arrived[3];
        int label[3];
        for (int axis = 0; axis < 3; ++axis) {
            if (!earlier[axis]) continue;
            const Index u = s - sign * e.stride[axis];
            const Index edge = forward ? u : s;
            arrived[axis] = !active ? 0.0 : axis == 2 ? carry[l] : __ldcg(p.message(axis, edge) + l);
            label[axis] = axis == 2 ? chosen : __ldcg(p.labels + u);
        }
        int best = l;
        if (g == 0) {
            double sums[3] = {0, 0, 0};
            for (int along = 0; along < 3; ++along)
                for (int axis = 0; axis < 3; ++axis) {
                    if (!earlier[axis]) continue;
                    const Index u = s - sign * e.stride[axis];
                    sums[along] += e.cost(s, u, along, mine[along], e.index_of(label[axis], along));
                }
            const double value = active ? all + ((sums[0] + sums[1]) + sums[2]) : HUGE_VAL;
            group_minimum(value, best, g, l, T, spare);
        }
        int n_later = 0, n_earlier = 0;
        for (int axis = 0; axis < 3; ++axis) {
            if (earlier[axis]) all += arrived[axis];
            n_later += later[axis];
            n_earlier += earlier[axis];
        }
        int chains = n_later > n_earlier ? n_later : n_earlier;
        chains = chains > 1 ? chains : 1;
        const double gamma = 1.0 / chains;
        if (g == 0 && chains > n_later) {
            int place = l;
            const double least = group_minimum(active ? all : HUGE_VAL, place, g, l, T, spare);
            if (l == 0) shifts[3] = (chains - n_later) * gamma * least;
        }
        double next = 0.0;
        for (int axis = 0; axis < 3; ++axis) {
            if (!later[axis] || (c.groups == 3 && axis != g)) continue;
            const Index t = s + sign * e.stride[axis];
            if (active) work[l] = gamma * all - sent[axis];
            group_barrier(g, T);
            double *from = work, *to = other, value = 0.0;
            for (int along = 0; along < 3; ++along) {
                if (active) {
                    value = e.minimum_along(from + l - mine[along] * pitch[along], pitch[along], along,
                                            mine[along], e.shift(s, t, along));
                    to[l] = value;
                }
                group_barrier(g, T);
                double* swap = from;
                from = to;
                to = swap;
            }
            int place = l;
            const double shift = group_minimum(active ? value : HUGE_VAL, place, g, l, T, spare);
            if (active) __stcg(p.message(axis, forward ? s : t) + l, value - shift);
            if (axis == 2) next = value - shift;
            if (l == 0) shifts[axis] = shift;
        }
        __syncthreads();  // all have read the carry
        if (step + 1 < nz && active && (c.groups == 1 || g == 2)) carry[l] = next;
        if (threadIdx.x == 0) {
            chosen = best;
            __stcg(p.labels + s, best);
            double sum = chains > n_later ? shifts[3] : 0.0;
            for (int axis = 0; axis < 3; ++axis)
                if (later[axis]) sum += shifts[axis];
            p.bound[s] = sum;
            __threadfence();
            set_progress(c.progress + column, c.passes * nz + step + 1);
        }
        __syncthreads();
    }
}

#endif

}  // namespace regweave::gpu
