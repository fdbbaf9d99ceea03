// One pass of message passing with a warp for each column of nodes, for three labels along each axis.
//
// A message is a row of 32 numbers: one for each of the 27 labels, and last the label that its node took. A
// row that is not there yet holds no number that arithmetic gives (all bits set), so that who waits for it
// looks at the row itself: one way through memory a node, no counters and no fences.
#pragma once

#include "messages.hpp"

namespace regweave::gpu {

constexpr int kWaveEdge = 3, kWaveLabels = 27, kWaveRow = 32;

// What `TrwsPass` computes.
struct TrwsWaves {
    LabelEnergy e;
    double* before;  // (3, N, 32): messages of the last pass; each is taken away when it has been read
    double* made;    // (3, N, 32): messages of this pass; none is there at its start
    std::int32_t* labels;
    double* bound;
    int* begun;  // columns; counts on from pass to pass
    int passes;  // made before
    bool forward;
};

#if defined(__CUDACC__)

constexpr unsigned kWarp = 0xffffffffu;
constexpr long long kNotThere = -1;

__device__ inline long long look(const double* p) {
    long long v;
    asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline void leave(double* p, long long v) {
    asm volatile("st.relaxed.gpu.global.s64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ inline double smaller(double a, double b) { return a < b ? a : b; }
__device__ inline double pick(const double* v, int i) { return i == 0 ? v[0] : i == 1 ? v[1] : v[2]; }
__device__ inline double warp_least(double v) {
    for (int d = 16; d > 0; d /= 2) v = smaller(__shfl_xor_sync(kWarp, v, d), v);
    return v;
}

// The line of labels along each axis that a lane lies on.
struct WaveLine {
    double o[3], step[2];
    int mine, first, pitch;

    // One axis of a min-plus product; `shift` is that of the elastic case.
    template <bool kChained>
    __device__ double along(double f, double weight, double shift) const {
        double v[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) v[a] = __shfl_sync(kWarp, f, first + a * pitch);
        if (!kChained) {
            const double own = pick(o, mine);
            double m = v[0] + weight * fabs(o[0] - own + shift);
#pragma unroll
            for (int a = 1; a < 3; ++a) m = smaller(v[a] + weight * fabs(o[a] - own + shift), m);
            return m;
        }
        const double up1 = smaller(v[0] + step[0], v[1]), up2 = smaller(up1 + step[1], v[2]);
        const double down1 = smaller(v[2] + step[1], v[1]), down0 = smaller(down1 + step[0], v[0]);
        return mine == 0 ? down0 : mine == 1 ? smaller(down1, up1) : up2;
    }
};

// What a node needs that no other node of the pass makes.
struct WaveNode {
    double unary, sent[3];

    __device__ void read(const TrwsWaves& c, Index s, const bool* later, int lane) {
        const LabelEnergy& e = c.e;
        unary = lane < kWaveLabels ? __ldg(e.unary + s * kWaveLabels + lane) : 0.0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            sent[axis] = 0.0;
            if (!later[axis]) continue;
            double* row =
                c.before + (axis * e.nodes + (c.forward ? s : s - e.stride[axis])) * kWaveRow + lane;
            sent[axis] = __longlong_as_double(look(row));
            leave(row, kNotThere);
        }
    }
};

template <bool kChained>
__device__ void walk_column(const TrwsWaves& c) {
    const LabelEnergy& e = c.e;
    const int lane = threadIdx.x, columns = e.shape[0] * e.shape[1], nz = e.shape[2];
    int ticket = 0;
    if (lane == 0) ticket = atomicAdd(c.begun, 1) - c.passes * columns;  // an order, no sum
    ticket = __shfl_sync(kWarp, ticket, 0);
    const bool forward = c.forward, active = lane < kWaveLabels;
    const int column = forward ? ticket : columns - 1 - ticket, sign = forward ? 1 : -1;
    const int i = column / e.shape[1], j = column % e.shape[1], q = active ? lane : 0;
    bool later[3] = {forward ? i + 1 < e.shape[0] : i > 0, forward ? j + 1 < e.shape[1] : j > 0, nz > 1};
    bool earlier[3] = {forward ? i > 0 : i + 1 < e.shape[0], forward ? j > 0 : j + 1 < e.shape[1], false};
    WaveLine line[3];
    const int index[3] = {q / 9, q / 3 % 3, q % 3};
#pragma unroll
    for (int a = 0; a < 3; ++a) {
        const int pitch = a == 0 ? 9 : a == 1 ? 3 : 1;
        const double* o = e.offsets + 3 * a;
        line[a] = {{o[0], o[1], o[2]},
                   {e.cost(o, 0, 1, 0.0), e.cost(o, 1, 2, 0.0)},
                   index[a],
                   q - index[a] * pitch,
                   pitch};
    }
    double carry = 0.0;  // message along the column
    int carried = 0;     // label of the node before
    WaveNode node;
    Index s = Index(column) * nz + (forward ? 0 : nz - 1);
    node.read(c, s, later, lane);
    for (int step = 0; step < nz; ++step, s += sign) {
        const bool last = step + 1 == nz;
        later[2] = !last;
        earlier[2] = step > 0;
        const WaveNode now = node;
        if (!last) {
            const bool next[3] = {later[0], later[1], step + 2 < nz};
            node.read(c, s + sign, next, lane);
        }
        double shift_to[3][3] = {}, shift_from[3][3] = {};
        if (!kChained) {
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
#pragma unroll
                for (int along = 0; along < 3; ++along) {
                    if (later[axis]) shift_to[axis][along] = e.shift(s, s + sign * e.stride[axis], along);
                    if (earlier[axis]) shift_from[axis][along] = e.shift(s, s - sign * e.stride[axis], along);
                }
        }
        double all = now.unary;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            if (later[axis]) all += now.sent[axis];
        // Wait for both columns before this one.
        const double* from[2];
#pragma unroll
        for (int axis = 0; axis < 2; ++axis)
            from[axis] = c.made + (axis * e.nodes + (forward ? s - e.stride[axis] : s)) * kWaveRow + lane;
        long long seen[2] = {0, 0};
        do {
            if (earlier[0]) seen[0] = look(from[0]);
            if (earlier[1]) seen[1] = look(from[1]);
        } while (__any_sync(kWarp, seen[0] == kNotThere || seen[1] == kNotThere));
        double arrived[3] = {__longlong_as_double(seen[0]), __longlong_as_double(seen[1]), carry};
        int label[3] = {int(__shfl_sync(kWarp, arrived[0], kWaveRow - 1)),
                        int(__shfl_sync(kWarp, arrived[1], kWaveRow - 1)), carried};
        double sums[3] = {0, 0, 0};
#pragma unroll
        for (int along = 0; along < 3; ++along)
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                if (!earlier[axis]) continue;
                const int there = along == 0   ? label[axis] / 9
                                  : along == 1 ? label[axis] / 3 % 3
                                               : label[axis] % 3;
                const double far = pick(line[along].o, line[along].mine) - pick(line[along].o, there);
                sums[along] += e.weight * fabs(far + shift_from[axis][along]);
            }
        const double value = active ? all + ((sums[0] + sums[1]) + sums[2]) : HUGE_VAL;
        const int place = __ffs(int(__ballot_sync(kWarp, value == warp_least(value)))) - 1;
        const int best = place < 0 ? 0 : place;
        int n_later = 0, n_earlier = 0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            if (earlier[axis]) all += arrived[axis];
            n_later += later[axis];
            n_earlier += earlier[axis];
        }
        int chains = n_later > n_earlier ? n_later : n_earlier;
        chains = chains > 1 ? chains : 1;
        const double gamma = chains == 1 ? 1.0 : chains == 2 ? 0.5 : 1.0 / 3.0;
        double f[3], least[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) f[axis] = active ? gamma * all - now.sent[axis] : 0.0;
#pragma unroll
        for (int along = 0; along < 3; ++along)
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                f[axis] = line[along].along<kChained>(f[axis], e.weight, shift_to[axis][along]);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) least[axis] = warp_least(active ? f[axis] : HUGE_VAL);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const double m = f[axis] - least[axis];
            const double sent = active ? m : lane == kWaveRow - 1 ? double(best) : 0.0;
            if (axis == 2) carry = sent;
            if (later[axis])
                leave(c.made + (axis * e.nodes + (forward ? s : s - e.stride[axis])) * kWaveRow + lane,
                      __double_as_longlong(sent));
        }
        carried = best;
        double sum =
            chains > n_later ? (chains - n_later) * gamma * warp_least(active ? all : HUGE_VAL) : 0.0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            if (later[axis]) sum += least[axis];
        if (lane == 0) {
            c.labels[s] = best;
            c.bound[s] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(32) regweave_TrwsWaves(const TrwsWaves c) {
    if (c.e.chained)
        walk_column<true>(c);
    else
        walk_column<false>(c);
}

#endif

}  // namespace regweave::gpu
