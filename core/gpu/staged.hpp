// Cost volumes with a block for each node: the moving image round it is brought to shared memory once, and
// shifted along x, then y, then z for all labels together. The numbers are those of costs.hpp, bit for bit.
#pragma once

#include "costs.hpp"

namespace regweave::gpu {

// Part of the moving image that the labels of a node see, beginning `low` voxels from its support.
struct Reach {
    int low[3], n[3];

    // Numbers in shared memory: that part, shifted along x, along x and y of each channel, the fixed image.
    REGWEAVE_BODY int raw() const { return n[0] * n[1] * n[2]; }
    REGWEAVE_BODY int along_x(const Patches& p) const { return p.labels[0] * p.size[0] * n[1] * n[2]; }
    REGWEAVE_BODY int along_xy(const Patches& p) const {
        return p.labels[0] * p.labels[1] * p.size[0] * p.size[1] * n[2];
    }
    REGWEAVE_BODY int staged(const Patches& p, int channels) const {
        return raw() + along_x(p) + channels * (along_xy(p) + p.voxels());
    }
};

// Threads that work on one node together; one alone does the same, and so the twin does.
struct Block {
    int thread, threads;
    Index number;
    float* room;  // shared memory

    REGWEAVE_BODY void wait() const {
#if defined(__CUDA_ARCH__)
        __syncthreads();
#endif
    }
};

constexpr int kHistogramRow = 68;  // bytes; 64 counts, and a step that spreads them over the banks

template <class Term>
struct StagedBox {
    BoxCost<Term> box;
    Reach reach;
};
struct StagedEntropy {
    EntropyCost8 entropy;
    Reach reach;
};
struct StagedHaar {
    HaarCost haar;
    Reach reach;
};
using StagedSad = StagedBox<AbsoluteDifference>;
using StagedNgf = StagedBox<TensorDifference>;
using StagedNcc = StagedBox<Correlation>;

struct Stage {
    const Block& block;
    const Patches& p;
    const Reach& r;
    int at[3];
    float *raw, *along_x, *along_xy, *fixed, *rest;

    REGWEAVE_BODY Stage(const Block& b, const Patches& patches, const Reach& reach, int channels)
        : block(b), p(patches), r(reach) {
        p.start(b.number, at);
        raw = b.room;
        along_x = raw + r.raw();
        along_xy = along_x + r.along_x(p);
        fixed = along_xy + channels * r.along_xy(p);
        rest = fixed + channels * p.voxels();
    }

    // Bring one channel of both images; all threads of the block.
    REGWEAVE_BODY void bring(const float* moved_from, const float* fixed_from, int c) {
        const int T = block.threads, plane = r.n[1] * r.n[2];
        const Index volume = p.grid.volume();
        const float* moved = moved_from + c * volume;
        for (int t = block.thread; t < r.raw(); t += T) {
            const int i = t / plane, j = t % plane / r.n[2], k = t % r.n[2];
            raw[t] = moved[p.grid.at(clamped(at[0] + r.low[0] + i, p.grid.n[0]),
                                     clamped(at[1] + r.low[1] + j, p.grid.n[1]),
                                     clamped(at[2] + r.low[2] + k, p.grid.n[2]))];
        }
        for (int t = block.thread; t < p.voxels(); t += T) {
            const int sheet = p.size[1] * p.size[2];
            fixed[c * p.voxels() + t] =
                fixed_from[c * volume + p.grid.at(at[0] + t / sheet, at[1] + t % sheet / p.size[2],
                                                  at[2] + t % p.size[2])];
        }
        block.wait();
        for (int row = block.thread; row < p.labels[0] * p.size[0] * r.n[1]; row += T) {
            const int y = row % r.n[1], x = row / r.n[1] % p.size[0], a = row / r.n[1] / p.size[0];
            const float* from = raw + ((x + p.whole[a] - r.low[0]) * r.n[1] + y) * r.n[2];
            const float fraction = p.fraction[a];
            for (int z = 0; z < r.n[2]; ++z)
                along_x[row * r.n[2] + z] = between(from[z], from[z + plane], fraction);
        }
        block.wait();
        float* to = along_xy + c * r.along_xy(p);
        for (int row = block.thread; row < p.labels[0] * p.labels[1] * p.size[0] * p.size[1]; row += T) {
            const int y = row % p.size[1], x = row / p.size[1] % p.size[0], ab = row / p.size[1] / p.size[0],
                      b = ab % p.labels[1], a = ab / p.labels[1];
            const int at_b = p.labels[0] + b;
            const float* from =
                along_x + ((a * p.size[0] + x) * r.n[1] + y + p.whole[at_b] - r.low[1]) * r.n[2];
            const float fraction = p.fraction[at_b];
            for (int z = 0; z < r.n[2]; ++z)
                to[row * r.n[2] + z] = between(from[z], from[z + r.n[2]], fraction);
        }
        block.wait();
    }
};

// The moving image shifted by one label, at the voxels of the support.
struct Seen {
    const Stage& stage;
    const float* from;
    float fraction;

    REGWEAVE_BODY Seen(const Stage& s, int label) : stage(s) {
        const Patches& p = s.p;
        const int ab = label / p.labels[2], at_c = p.labels[0] + p.labels[1] + label % p.labels[2];
        from = s.along_xy + ab * p.size[0] * p.size[1] * s.r.n[2] + p.whole[at_c] - s.r.low[2];
        fraction = p.fraction[at_c];
    }
    REGWEAVE_BODY float operator()(int c, int x, int y, int z) const {
        const float* f = from + c * stage.r.along_xy(stage.p) + (x * stage.p.size[1] + y) * stage.r.n[2] + z;
        return between(f[0], f[1], fraction);
    }
    REGWEAVE_BODY float fixed(int c, int x, int y, int z) const {
        const Patches& p = stage.p;
        return stage.fixed[c * p.voxels() + (x * p.size[1] + y) * p.size[2] + z];
    }
};

template <class Term>
REGWEAVE_BODY void costs_of_node(const StagedBox<Term>& body, const Block& block) {
    const BoxCost<Term>& k = body.box;
    const Patches& p = k.p;
    Stage stage(block, p, body.reach, k.channels);
    for (int c = 0; c < k.channels; ++c) stage.bring(k.moved, k.fixed, c);
    const int L = p.n_labels();
    float* sheets = stage.rest;  // (terms, L, size z)
    for (int t = block.thread; t < L * p.size[2]; t += block.threads) {
        const int label = t / p.size[2], z = t % p.size[2];
        const Seen seen(stage, label);
        float sheet[Term::terms] = {};
        for (int x = 0; x < p.size[0]; ++x) {
            float row[Term::terms] = {};
            for (int y = 0; y < p.size[1]; ++y)
                k.term.add(
                    row, k.channels, [&](int c) { return seen(c, x, y, z); },
                    [&](int c) { return seen.fixed(c, x, y, z); });
            for (int i = 0; i < Term::terms; ++i) sheet[i] += row[i];
        }
        for (int i = 0; i < Term::terms; ++i) sheets[i * L * p.size[2] + t] = sheet[i];
    }
    block.wait();
    for (int label = block.thread; label < L; label += block.threads) {
        double sums[Term::terms] = {};
        for (int z = 0; z < p.size[2]; ++z)
            for (int i = 0; i < Term::terms; ++i) sums[i] += sheets[(i * L + label) * p.size[2] + z];
        const double* moments = k.moments ? k.moments + 2 * block.number : nullptr;
        k.out[block.number * L + label] = k.term.finish(sums, moments);
    }
}

// A histogram of each sheet of voxels and label; counts are whole numbers, so that any order gives their sum.
REGWEAVE_BODY void costs_of_node(const StagedEntropy& body, const Block& block) {
    constexpr int bins = 8;
    const EntropyCost8& k = body.entropy;
    const Patches& p = k.p;
    Stage stage(block, p, body.reach, 1);
    stage.bring(k.moved, k.fixed, 0);
    const int L = p.n_labels(), S = p.size[2];
    float* parts = stage.rest;  // (L, bins)
    unsigned char* counts = reinterpret_cast<unsigned char*>(parts + L * bins);
    for (int t = block.thread; t < L * S * (kHistogramRow / 4); t += block.threads)
        reinterpret_cast<int*>(counts)[t] = 0;
    block.wait();
    for (int t = block.thread; t < L * S; t += block.threads) {
        const int label = t / S, z = t % S;
        const Seen seen(stage, label);
        unsigned char* mine = counts + t * kHistogramRow;
        for (int x = 0; x < p.size[0]; ++x)
            for (int y = 0; y < p.size[1]; ++y)
                ++mine[EntropyCost8::bin_of(seen.fixed(0, x, y, z)) * bins +
                       EntropyCost8::bin_of(seen(0, x, y, z))];
    }
    block.wait();
    for (int t = block.thread; t < L * bins; t += block.threads) {
        const int label = t / bins, w = t % bins;
        float part = 0;
        int of_w = 0;
        for (int j = 0; j < bins; ++j) {
            int n = 0;
            for (int z = 0; z < S; ++z) n += counts[(label * S + z) * kHistogramRow + j * bins + w];
            part += k.n_log_n[n];
            of_w += n;
        }
        parts[t] = k.n_log_n[of_w] - part;
    }
    block.wait();
    for (int label = block.thread; label < L; label += block.threads) {
        float information = 0;
        for (int w = 0; w < bins; ++w) information += parts[label * bins + w];
        k.out[block.number * L + label] = most(0.0f, information / float(p.voxels()));
    }
}

// A thread for each cube of 2 × 2 × 2 voxels and label.
REGWEAVE_BODY void costs_of_node(const StagedHaar& body, const Block& block) {
    const HaarCost& k = body.haar;
    const Patches& p = k.p;
    Stage stage(block, p, body.reach, 1);
    stage.bring(k.moved, k.fixed, 0);
    const int L = p.n_labels(), cubes = p.voxels() / 8, ny = p.size[1] / 4, nz = p.size[2] / 4;
    float* found = stage.rest;  // (L, cubes, 3): both bands of the first transform, and what is left
    for (int t = block.thread; t < L * cubes; t += block.threads) {
        const int label = t / cubes, cube = t % cubes, part = cube / 8;
        const int x = part / nz / ny * 4 + cube / 4 % 2 * 2, y = part / nz % ny * 4 + cube / 2 % 2 * 2,
                  z = part % nz * 4 + cube % 2 * 2;
        const Seen seen(stage, label);
        const HaarCube haar([&](int i, int j, int c) {
            return seen(0, x + i, y + j, z + c) - seen.fixed(0, x + i, y + j, z + c);
        });
        found[3 * t] = haar.doubled;
        found[3 * t + 1] = haar.single;
        found[3 * t + 2] = haar.low;
    }
    block.wait();
    for (int label = block.thread; label < L; label += block.threads) {
        float fine = 0, coarse = 0;
        for (int part = 0; part < cubes / 8; ++part) {
            const float* of = found + 3 * (label * cubes + 8 * part);
            for (int c = 0; c < 8; ++c) {
                fine += of[3 * c];
                fine += of[3 * c + 1];
            }
            HaarCube::add_coarse(coarse,
                                 [&](int i, int j, int c) { return of[3 * (4 * i + 2 * j + c) + 2]; });
        }
        k.out[block.number * L + label] = haar_cost(fine, coarse, p.voxels());
    }
}

#if defined(__CUDACC__)
#define REGWEAVE_STAGED(Body)                                                                   \
    extern "C" __global__ void __launch_bounds__(256) regweave_##Body(const Body body) {        \
        extern __shared__ float room[];                                                         \
        costs_of_node(body, Block{int(threadIdx.x), int(blockDim.x), Index(blockIdx.x), room}); \
    }
#else
#define REGWEAVE_STAGED(Body) REGWEAVE_KERNEL(Body)
#endif
REGWEAVE_STAGED(StagedSad)
REGWEAVE_STAGED(StagedNgf)
REGWEAVE_STAGED(StagedNcc)
REGWEAVE_STAGED(StagedEntropy)
REGWEAVE_STAGED(StagedHaar)

}  // namespace regweave::gpu
