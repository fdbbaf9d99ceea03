// Layers of a convolutional network, on images with the channels of a voxel side by side, (X, Y, Z, C).
//
// A convolution of 3 × 3 × 3 voxels sums up a tile of voxels along z and blocks of output channels in
// registers: of each input channel and neighbour one vector of weights for each block is loaded, and one
// number for each voxel of the tile. Every output is one sum in a fixed order, and the statistics of a
// channel are sums over planes that are added up in order, so that threads change no bit.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "simd.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;

// Sums that sixteen registers hold beside the weights.
constexpr int kSums = 12;
constexpr int kMostBlocks = 3;
constexpr float kLeak = 0.01f, kEpsilon = 1e-5f;
constexpr std::size_t kMostChannels = 1 << 14;

// An image that is looked at through a grid ``stride`` times as fine, as if each voxel were repeated.
struct Source {
    const float* data;
    std::size_t ny, nz, channels;
    Shape stride;

    const float* row(std::size_t x, std::size_t y) const {
        return data + (x / stride[0] * ny + y / stride[1]) * nz * channels;
    }
};

struct Layer {
    std::vector<Source> sources;
    Shape n;
    std::size_t out_channels;
    const float* zeros;

    std::size_t in_channels() const {
        std::size_t total = 0;
        for (const Source& s : sources) total += s.channels;
        return total;
    }
};

// Voxels z - 1, …, z + T of a row; what lies outside is zero.
template <int T>
void look_at(const Source& source, const float* row, int z, int nz, const float* zeros, const float** voxel) {
    for (int i = 0; i < T + 2; ++i) {
        const int k = z + i - 1;
        const bool inside = k >= 0 && k < nz;
        voxel[i] = inside ? row + std::size_t(k) / source.stride[2] * source.channels : zeros;
    }
}

// B registers of output channels of T voxels; weights are in the order in which they are used.
template <int B, int T>
void convolve_tile(const Layer& layer, int x, int y, int z, const float* weights, float* out) {
    Register sum[T][B] = {};
    const int nx = int(layer.n[0]), ny = int(layer.n[1]), nz = int(layer.n[2]);
    for (const Source& source : layer.sources) {
        const std::size_t channels = source.channels;
        for (int d = 0; d < 9; ++d, weights += 3 * channels * kRegister * B) {
            const int i = x + d / 3 - 1, j = y + d % 3 - 1;
            if (i < 0 || i >= nx || j < 0 || j >= ny) continue;
            const float* voxel[T + 2];
            look_at<T>(source, source.row(i, j), z, nz, layer.zeros, voxel);
            const float* w = weights;
            for (int k = 0; k < 3; ++k)
                for (std::size_t c = 0; c < channels; ++c, w += kRegister * B) {
                    Register weight[B];
                    for (int b = 0; b < B; ++b) weight[b] = load<Register>(w + kRegister * b);
                    for (int v = 0; v < T; ++v)
                        for (int b = 0; b < B; ++b) sum[v][b] += voxel[v + k][c] * weight[b];
                }
        }
    }
    for (int v = 0; v < T; ++v)
        for (int b = 0; b < B; ++b) store(out + v * layer.out_channels + kRegister * b, sum[v][b]);
}

template <int B, int T>
void convolve_some(int tile, const Layer& layer, int x, int y, int z, const float* weights, float* out) {
    if constexpr (T > 1)
        if (tile < T) return convolve_some<B, T - 1>(tile, layer, x, y, z, weights, out);
    convolve_tile<B, T>(layer, x, y, z, weights, out);
}

// A row in tiles that differ by one voxel at most: a short last one would wait for its own sums.
template <int B>
void convolve_row(const Layer& layer, int x, int y, const float* weights, float* out) {
    constexpr int most = kSums / B;
    const int nz = int(layer.n[2]), tiles = (nz + most - 1) / most;
    for (int t = 0; t < tiles; ++t) {
        const int z = int(std::int64_t(nz) * t / tiles), end = int(std::int64_t(nz) * (t + 1) / tiles);
        convolve_some<B, most>(end - z, layer, x, y, z, weights, out + z * layer.out_channels);
    }
}

// Output channels that are summed up together, and their weights in the order of use.
struct Group {
    int first, blocks;
    std::vector<float> weights;
};

std::vector<Group> grouped(const float* weight, const Layer& layer) {
    const int n_blocks = int(layer.out_channels) / kRegister, in = int(layer.in_channels());
    std::vector<Group> groups;
    for (int at = 0; at < n_blocks;) {
        const int left = n_blocks - at, blocks = left == 3 || left == 1 ? left : 2;
        groups.push_back({kRegister * at, blocks, {}});
        at += blocks;
    }
    parallel_for(int(groups.size()), [&](int g) {
        Group& group = groups[g];
        const int lanes = kRegister * group.blocks;
        group.weights.resize(std::size_t(27) * in * lanes);
        float* w = group.weights.data();
        int before = 0;
        for (const Source& source : layer.sources) {
            for (int tap = 0; tap < 27; ++tap)
                for (int c = before; c < before + int(source.channels); ++c)
                    for (int o = 0; o < lanes; ++o)
                        *w++ = weight[(std::size_t(group.first + o) * in + c) * 27 + tap];
            before += int(source.channels);
        }
    });
    return groups;
}

// Sums and sums of squares over a plane, for the channels of a group.
void add_up(const float* row, std::size_t voxels, std::size_t step, int lanes, double* sums,
            double* squares) {
    for (std::size_t v = 0; v < voxels; ++v, row += step)
        for (int c = 0; c < lanes; ++c) {
            const double value = row[c];
            sums[c] += value;
            squares[c] += value * value;
        }
}

// Convolves into out; fills for each plane the sums (planes, 2, channels).
void convolve(const Layer& layer, const std::vector<Group>& groups, float* out, double* sums) {
    const std::size_t row = layer.n[2] * layer.out_channels, plane = layer.n[1] * row;
    parallel_for(int(groups.size() * layer.n[0]), [&](int task) {
        const Group& group = groups[task / layer.n[0]];
        const int x = int(task % layer.n[0]), lanes = kRegister * group.blocks;
        double* here = sums + 2 * x * layer.out_channels + group.first;
        std::vector<double> total(2 * lanes, 0.0);
        for (int y = 0; y < int(layer.n[1]); ++y) {
            float* o = out + x * plane + y * row + group.first;
            const float* w = group.weights.data();
            if (group.blocks == 1) convolve_row<1>(layer, x, y, w, o);
            if (group.blocks == 2) convolve_row<2>(layer, x, y, w, o);
            if (group.blocks == kMostBlocks) convolve_row<kMostBlocks>(layer, x, y, w, o);
            add_up(o, layer.n[2], layer.out_channels, lanes, total.data(), &total[lanes]);
        }
        std::copy(total.begin(), total.begin() + lanes, here);
        std::copy(total.begin() + lanes, total.end(), here + layer.out_channels);
    });
}

// Instance norm and leaky ReLU, in place.
void normalise(const Layer& layer, const std::vector<double>& sums, const float* scale, const float* shift,
               float* out) {
    const std::size_t C = layer.out_channels, plane = layer.n[1] * layer.n[2];
    std::vector<float> mean(C), factor(C);
    for (std::size_t c = 0; c < C; ++c) {
        double sum = 0, square = 0;
        for (std::size_t x = 0; x < layer.n[0]; ++x) {
            sum += sums[2 * x * C + c];
            square += sums[(2 * x + 1) * C + c];
        }
        const double voxels = double(plane) * double(layer.n[0]), m = sum / voxels;
        mean[c] = float(m);
        factor[c] = float(scale[c] / std::sqrt(std::max(0.0, square / voxels - m * m) + kEpsilon));
    }
    parallel_for(int(layer.n[0]), [&](int x) {
        float* o = out + x * plane * C;
        for (std::size_t v = 0; v < plane; ++v, o += C)
            for (std::size_t c = 0; c < C; ++c) {
                const float value = (o[c] - mean[c]) * factor[c] + shift[c];
                o[c] = value > 0.0f ? value : kLeak * value;
            }
    });
}

Shape grid_of(const In<float, 4>& image, const char* name) {
    const Shape n{image.shape(0), image.shape(1), image.shape(2)};
    require_grid(n, name);
    require(image.shape(3) >= 1 && image.shape(3) <= kMostChannels, "an image has 1 to 2^14 channels");
    return n;
}

Out<float> convolution_block(In<float, 4> image, std::optional<In<float, 4>> coarse, Shape stride,
                             In<float, 5> weight, In<float, 1> scale, In<float, 1> shift) {
    const Shape n = grid_of(image, "image");
    Layer layer{{{image.data(), n[1], n[2], image.shape(3), {1, 1, 1}}}, n, weight.shape(0), nullptr};
    if (coarse) {
        const Shape m = grid_of(*coarse, "coarse");
        for (int a = 0; a < 3; ++a)
            require(stride[a] >= 1 && stride[a] <= n[a] && m[a] * stride[a] == n[a],
                    "the image must be stride times as large as the coarse one");
        layer.sources.push_back({coarse->data(), m[1], m[2], coarse->shape(3), stride});
    }
    const std::size_t in = layer.in_channels(), out_channels = layer.out_channels;
    require(weight.shape(1) == in && weight.shape(2) == 3 && weight.shape(3) == 3 && weight.shape(4) == 3,
            "weight must have the shape (channels out, channels in, 3, 3, 3)");
    require(out_channels >= 8 && out_channels <= kMostChannels && out_channels % 8 == 0,
            "the channels of the result must be a multiple of 8, at most 2^14");
    require(scale.shape(0) == out_channels && shift.shape(0) == out_channels,
            "scale and shift must have a number for each channel of the result");
    require(out_channels * n[0] <= kMostVoxels, "the result has too many planes");
    NewArray<float, 4> out({n[0], n[1], n[2], out_channels});
    {
        nb::gil_scoped_release nogil;
        const std::vector<float> zeros(in, 0.0f);
        layer.zeros = zeros.data();
        std::vector<double> sums(2 * n[0] * out_channels);
        convolve(layer, grouped(weight.data(), layer), out.data.get(), sums.data());
        normalise(layer, sums, scale.data(), shift.data(), out.data.get());
    }
    return out.release();
}

Out<float> max_pool(In<float, 4> image, Shape stride) {
    const Shape n = grid_of(image, "image");
    for (int a = 0; a < 3; ++a)
        require(stride[a] >= 1 && stride[a] <= n[a] && n[a] % stride[a] == 0, "stride must divide the grid");
    const std::size_t C = image.shape(3);
    const Shape m{n[0] / stride[0], n[1] / stride[1], n[2] / stride[2]};
    NewArray<float, 4> out({m[0], m[1], m[2], C});
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(m[0]), [&](int x) {
            float* o = out.data.get() + x * m[1] * m[2] * C;
            for (std::size_t y = 0; y < m[1]; ++y)
                for (std::size_t z = 0; z < m[2]; ++z, o += C) {
                    bool first = true;
                    for (std::size_t i = x * stride[0]; i < (x + 1) * stride[0]; ++i)
                        for (std::size_t j = y * stride[1]; j < (y + 1) * stride[1]; ++j)
                            for (std::size_t k = z * stride[2]; k < (z + 1) * stride[2]; ++k, first = false) {
                                const float* v = image.data() + ((i * n[1] + j) * n[2] + k) * C;
                                for (std::size_t c = 0; c < C; ++c) o[c] = first || v[c] > o[c] ? v[c] : o[c];
                            }
                }
        });
    }
    return out.release();
}

Out<float> class_shares(In<float, 4> image, In<float, 2> weight, In<float, 1> bias) {
    const Shape n = grid_of(image, "image");
    const std::size_t C = image.shape(3), K = weight.shape(0), voxels = n[0] * n[1] * n[2];
    require(weight.shape(1) == C, "weight must have the shape (classes, channels)");
    require(K >= 1 && K <= kMostChannels && bias.shape(0) == K, "bias must have a number for each class");
    NewArray<float, 4> out({K, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        std::vector<float> by_channel(C * K);
        for (std::size_t k = 0; k < K; ++k)
            for (std::size_t c = 0; c < C; ++c) by_channel[c * K + k] = weight.data()[k * C + c];
        parallel_for(int(n[0]), [&](int x) {
            std::vector<float> score(K);
            const std::size_t plane = n[1] * n[2], first = x * plane;
            for (std::size_t v = first; v < first + plane; ++v) {
                const float* in = image.data() + v * C;
                std::copy(bias.data(), bias.data() + K, score.begin());
                for (std::size_t c = 0; c < C; ++c)
                    for (std::size_t k = 0; k < K; ++k) score[k] += in[c] * by_channel[c * K + k];
                const float largest = *std::max_element(score.begin(), score.end());
                float total = 0;
                for (float& s : score) total += s = std::exp(s - largest);
                for (std::size_t k = 0; k < K; ++k) out.data[k * voxels + v] = score[k] / total;
            }
        });
    }
    return out.release();
}

}  // namespace

void register_network(nb::module_& m) {
    m.def("convolution_block", &convolution_block, nb::arg("image"), nb::arg("coarse").none(),
          nb::arg("stride"), nb::arg("weight"), nb::arg("scale"), nb::arg("shift"),
          "Convolve image (X, Y, Z, C), and coarse with each voxel repeated stride times as further "
          "channels, by\n"
          "weight (O, C, 3, 3, 3) with zeros outside; instance norm with scale and shift, leaky ReLU.");
    m.def("max_pool", &max_pool, nb::arg("image"), nb::arg("stride"),
          "Return the largest value of each block of stride voxels of image (X, Y, Z, C).");
    m.def("class_shares", &class_shares, nb::arg("image"), nb::arg("weight"), nb::arg("bias"),
          "Return softmax(weight · image + bias), (K, X, Y, Z), for image (X, Y, Z, C) and weight (K, C).");
}
