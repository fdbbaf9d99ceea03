// The compiled cost volumes: features of both images in, cost of every node and label out.
#include <nanobind/stl/array.h>

#include <cstring>

#include "arrays.hpp"
#include "box_volume.hpp"
#include "haar.hpp"
#include "patch_volume.hpp"
#include "shared/costs.hpp"

namespace regweave {
namespace {

// Mean of one channel: class shares and patch volumes.
struct Mean {
    static constexpr int terms = 1;
    double scale;

    template <class V, class Channels, class W, class F>
    void add(V* sums, Channels, W w, F) const {
        sums[0] += w(0);
    }
    float finish(const double* sums, const double*) const { return float(sums[0] * scale); }
};

// Mean of the product of one channel with the fixed one: overlap of two masks.
struct Product {
    static constexpr int terms = 1;
    double scale;

    template <class V, class Channels, class W, class F>
    void add(V* sums, Channels, W w, F f) const {
        sums[0] += w(0) * f(0);
    }
    float finish(const double* sums, const double*) const { return float(sums[0] * scale); }
};

// H(J | W) = Σ_w c_w log c_w − Σ_wj c_wj log c_wj, over n, from integer counts and one table. Count is 16
// bits wide, half the memory to clear and add up, unless a support has more voxels than that can count.
template <int Bins, typename Count>
struct ConditionalEntropy {
    using Voxel = std::uint8_t;
    static constexpr int lanes =
        4;  // histograms filled in turn: a run of equal voxels does not wait for itself
    const Job& job;
    const std::uint8_t* fixed_bins;  // bin of the fixed image times Bins
    const std::vector<float>& n_log_n;

    struct Scratch {
        std::vector<Count> counts;
        explicit Scratch(const ConditionalEntropy&) : counts(lanes * Bins * Bins) {}
    };

    void row(const float* in, float fraction, int i, int j, Voxel* out, int n) const {
        constexpr int kPart = 64;
        const std::uint8_t* f = fixed_bins + job.plane() * i + std::size_t(n) * j;
        float bins[kPart];  // as floats first: in one loop the compiler would choose among bytes, not cut
                            // floats
        for (int begin = 0; begin < n; begin += kPart) {
            const int m = std::min(kPart, n - begin);
            const float* w = in + begin;
            for (int v = 0; v < m; ++v) bins[v] = cut_to_bins<Bins>(between(w[v], w[v + 1], fraction));
            for (int v = 0; v < m; ++v) out[begin + v] = Voxel(f[begin + v] + int(bins[v]));
        }
    }
    float patch(const Voxel* const* planes, std::size_t stride, Scratch& scratch) const {
        const Supports& s = job.supports;
        Count* c = scratch.counts.data();
        constexpr int cells = Bins * Bins;
        std::memset(c, 0, sizeof(Count) * lanes * cells);
        const int nz = s.size[2];
        for (int x = 0; x < s.size[0]; ++x)
            for (int y = 0; y < s.size[1]; ++y) {
                const Voxel* p = planes[x] + y * stride;
                int z = 0;
                for (; z + 4 <= nz; z += 4) {
                    ++c[p[z]];
                    ++c[cells + p[z + 1]];
                    ++c[2 * cells + p[z + 2]];
                    ++c[3 * cells + p[z + 3]];
                }
                for (; z < nz; ++z) ++c[(z & 3) * cells + p[z]];
            }
        for (int v = 0; v < cells; ++v) c[v] = c[v] + c[cells + v] + c[2 * cells + v] + c[3 * cells + v];
        // One sum for each bin of w: additions that do not wait for each other.
        float part[Bins] = {};
        std::uint32_t of_w[Bins] = {};
        for (int j = 0; j < Bins; ++j)
            for (int w = 0; w < Bins; ++w) {
                part[w] += n_log_n[c[j * Bins + w]];
                of_w[w] += c[j * Bins + w];
            }
        float information = 0;
        for (int w = 0; w < Bins; ++w) information += n_log_n[of_w[w]] - part[w];
        return most(0.0f, information / float(s.voxels()));
    }
};

struct HaarDifference {
    using Voxel = float;
    const Job& job;

    struct Scratch {
        explicit Scratch(const HaarDifference&) {}
    };

    void row(const float* in, float fraction, int i, int j, Voxel* out, int n) const {
        const float* f = job.fixed + job.plane() * i + std::size_t(n) * j;
        for (int v = 0; v < n; ++v) out[v] = between(in[v], in[v + 1], fraction) - f[v];
    }
    float patch(const Voxel* const* planes, std::size_t stride, Scratch&) const {
        const Supports& s = job.supports;
        V8 fine = {}, coarse = {};
        for (int x = 0; x < s.size[0]; x += 4)
            for (int y = 0; y < s.size[1]; y += 4) {
                int z = 0;
                for (; z + 8 <= s.size[2]; z += 8)
                    haar_block<load8>(planes + x, stride, y * stride + z, fine, coarse);
                if (z < s.size[2]) haar_block<load4>(planes + x, stride, y * stride + z, fine, coarse);
            }
        return haar_cost(sum8(fine), sum8(coarse), s.voxels());
    }
};

NewArray<float, 2> make_output(const Job& job) {
    const Supports& s = job.supports;
    return NewArray<float, 2>({std::size_t(s.n[0]) * s.n[1] * s.n[2], std::size_t(job.n_labels())});
}

template <class Op>
Out<float> run_box(const Job& job, const Op& op, const double* moments = nullptr) {
    auto out = make_output(job);
    {
        nb::gil_scoped_release nogil;
        BoxVolume<Op>(job, op, moments, out.data.get()).run();
    }
    return out.release();
}

template <class Op>
Out<float> run_patch(const Job& job, const Op& op) {
    require(job.channels == 1, "this cost takes one channel");
    auto out = make_output(job);
    {
        nb::gil_scoped_release nogil;
        patch_volume(job, op, out.data.get());
    }
    return out.release();
}

#define SUPPORT_ARGUMENTS                                                                             \
    In<float, 4> fixed, In<float, 4> moved, Starts sx, Starts sy, Starts sz, std::array<int, 3> size, \
        Displacements dx, Displacements dy, Displacements dz
#define SUPPORT_VALUES fixed, moved, sx, sy, sz, size, dx, dy, dz

Out<float> sad_volume(SUPPORT_ARGUMENTS) {
    Job job = make_job(SUPPORT_VALUES);
    job.needed = not_blank(job);
    return run_box(job, AbsoluteDifference{1.0 / (double(job.supports.voxels()) * job.channels)});
}

Out<float> ngf_volume(SUPPORT_ARGUMENTS) {
    Job job = make_job(SUPPORT_VALUES);
    job.needed = not_blank(job);
    return run_box(job, TensorDifference{1.0 / job.supports.voxels()});
}

Out<float> mean_volume(SUPPORT_ARGUMENTS) {
    const Job job = make_job(SUPPORT_VALUES);
    require(job.channels == 1, "this cost takes one channel");
    return run_box(job, Mean{1.0 / job.supports.voxels()});
}

Out<float> overlap_volume(SUPPORT_ARGUMENTS) {
    const Job job = make_job(SUPPORT_VALUES);
    require(job.channels == 1, "this cost takes one channel");
    return run_box(job, Product{1.0 / job.supports.voxels()});
}

Out<float> ncc_volume(SUPPORT_ARGUMENTS, double floor, bool squared) {
    using Moments = std::array<double, 2>;
    Job job = make_job(SUPPORT_VALUES);
    require(std::isfinite(floor) && floor > 0, "the floor of the variance must be positive");
    require(job.channels == 1, "this cost takes one channel");
    if (!squared) job.needed = not_blank(job);
    const Supports& s = job.supports;
    const auto moments = by_support<Moments>(s, [&](int p, int q, int r) {
        double sum = 0, squares = 0;
        for (int x = p; x < p + s.size[0]; ++x)
            for (int y = q; y < q + s.size[1]; ++y) {
                const float* row = job.fixed + job.plane() * x + std::size_t(job.dim[2]) * y;
                for (int z = r; z < r + s.size[2]; ++z) {
                    sum += row[z];
                    squares += double(row[z]) * row[z];
                }
            }
        const double m = sum / s.voxels();
        return Moments{m, most(0.0, squares / s.voxels() - m * m) + floor};
    });
    return run_box(job, Correlation{double(s.voxels()), floor, squared}, moments.data()->data());
}

// Supports whose fixed bins are not all the same: H(J | W) is zero in the others.
std::vector<char> varied_supports(const Job& job, const std::vector<std::uint8_t>& bins) {
    const Supports& s = job.supports;
    return by_support<char>(s, [&](int p, int q, int r) {
        const std::uint8_t first = bins[job.plane() * p + std::size_t(job.dim[2]) * q + r];
        for (int x = p; x < p + s.size[0]; ++x)
            for (int y = q; y < q + s.size[1]; ++y) {
                const std::uint8_t* row = &bins[job.plane() * x + std::size_t(job.dim[2]) * y + r];
                if (std::any_of(row, row + s.size[2], [first](std::uint8_t b) { return b != first; }))
                    return char(1);
            }
        return char(0);
    });
}

template <int Bins, typename Count>
Out<float> entropy_volume(Job& job) {
    std::vector<std::uint8_t> bins(job.volume());
    parallel_for(job.dim[0], [&](int i) {
        for (std::size_t v = job.plane() * i; v < job.plane() * (i + 1); ++v)
            bins[v] = std::uint8_t(Bins * int(cut_to_bins<Bins>(job.fixed[v])));
    });
    std::vector<float> n_log_n(job.supports.voxels() + 1, 0.0f);
    for (std::size_t c = 2; c < n_log_n.size(); ++c) n_log_n[c] = float(double(c) * std::log(double(c)));
    job.needed = varied_supports(job, bins);
    return run_patch(job, ConditionalEntropy<Bins, Count>{job, bins.data(), n_log_n});
}

template <int Bins>
Out<float> counted_entropy(Job& job) {
    if (job.supports.voxels() <= UINT16_MAX) return entropy_volume<Bins, std::uint16_t>(job);
    return entropy_volume<Bins, std::uint32_t>(job);
}

Out<float> mi_volume(SUPPORT_ARGUMENTS, int bins) {
    Job job = make_job(SUPPORT_VALUES);
    require(job.channels == 1, "this cost takes one channel");
    switch (bins) {
        case 8:
            return counted_entropy<8>(job);
        case 16:
            return counted_entropy<16>(job);
        default:
            throw std::invalid_argument("mutual information takes 8 or 16 bins");
    }
}

Out<float> dwt_volume(SUPPORT_ARGUMENTS) {
    Job job = make_job(SUPPORT_VALUES);
    require(job.channels == 1, "this cost takes one channel");
    for (int size_ : job.supports.size)
        require(size_ % 4 == 0, "the wavelet support must be a multiple of 4 voxels");
    job.needed = not_blank(job);
    return run_patch(job, HaarDifference{job});
}

}  // namespace
}  // namespace regweave

void register_cost_volume(regweave::nb::module_& m) {
    using namespace regweave;
    auto define = [&m](const char* name, auto kernel, const char* text, auto... more) {
        using namespace nb::literals;
        m.def(name, kernel, "fixed"_a, "moved"_a, "sx"_a, "sy"_a, "sz"_a, "size"_a, "dx"_a, "dy"_a, "dz"_a,
              more..., text);
    };
    define("sad_volume", &sad_volume, "Mean absolute difference of all channels, (N, L).");
    define("ngf_volume", &ngf_volume,
           "Half the mean squared difference of the outer products of the channels, (N, L).");
    define("mean_volume", &mean_volume, "Mean of the moved channel in each support, (N, L).");
    define("overlap_volume", &overlap_volume, "Mean product of the two channels in each support, (N, L).");
    define("ncc_volume", &ncc_volume, "One minus the correlation coefficient, or its square, (N, L).",
           nb::arg("floor"), nb::arg("squared"));
    define("mi_volume", &mi_volume, "Conditional entropy of the fixed bins given the moved ones, (N, L).",
           nb::arg("bins"));
    define("dwt_volume", &dwt_volume, "Mean absolute difference of the Haar coefficients, (N, L).");
}
