// Cross-entropy of a perceptron with one hidden layer of tanh units, and its gradient.
//
// Rows are taken in tiles whose layers stay in the cache, and a tile's products are sums of twelve registers.
// Tiles of a part are added up in double precision, and the parts in order, so that threads change no bit.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"
#include "simd.hpp"

namespace {

using namespace regweave;

constexpr int kTile = 128, kPart = 1024;
constexpr int kRows = 4, kBlocks = 3;
constexpr std::size_t kMostUnits = 1 << 14;

std::size_t padded(std::size_t n) { return (n + 7) / 8 * 8; }

// exp by 2^whole · exp(rest), |rest| ≤ ln 2 / 2, where eight terms of the series leave 1e-8.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: the fraction is rounded away
    const float whole = shifted - 12582912.0f;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;  // the low bits of `shifted` are the whole number
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return sum * power;
}

// out (rows, n) += left · right: left[r, k] = left[r · row + k · column], right (depth, n) with n a multiple
// of 8.
template <int R, int B>
void multiply_tile(const float* left, std::size_t row, std::size_t column, const float* right, std::size_t n,
                   std::size_t depth, float* out) {
    V8 sum[R][B];
    for (int i = 0; i < R; ++i)
        for (int b = 0; b < B; ++b) sum[i][b] = load8(out + i * n + 8 * b);
    for (std::size_t k = 0; k < depth; ++k) {
        V8 line[B];
        for (int b = 0; b < B; ++b) line[b] = load8(right + k * n + 8 * b);
        for (int i = 0; i < R; ++i) {
            const float value = left[i * row + k * column];
            for (int b = 0; b < B; ++b) sum[i][b] += value * line[b];
        }
    }
    for (int i = 0; i < R; ++i)
        for (int b = 0; b < B; ++b) store(out + i * n + 8 * b, sum[i][b]);
}

template <int R>
void multiply_rows(const float* left, std::size_t row, std::size_t column, const float* right, std::size_t n,
                   std::size_t depth, float* out) {
    std::size_t j = 0;
    for (; j + 8 * kBlocks <= n; j += 8 * kBlocks)
        multiply_tile<R, kBlocks>(left, row, column, right + j, n, depth, out + j);
    for (; j < n; j += 8) multiply_tile<R, 1>(left, row, column, right + j, n, depth, out + j);
}

void multiply(const float* left, std::size_t rows, std::size_t row, std::size_t column, const float* right,
              std::size_t n, std::size_t depth, float* out) {
    std::size_t i = 0;
    for (; i + kRows <= rows; i += kRows)
        multiply_rows<kRows>(left + i * row, row, column, right, n, depth, out + i * n);
    for (; i < rows; ++i) multiply_rows<1>(left + i * row, row, column, right, n, depth, out + i * n);
}

// Both layers in single precision, their rows filled up with zeros to eight.
struct Layers {
    std::size_t f, h, c, hp, cp;
    std::vector<float> hidden, hidden_bias, output, output_bias, output_across;

    Layers(const In<double, 2>& w, const In<double, 1>& b, const In<double, 2>& v, const In<double, 1>& a)
        : f(w.shape(0)),
          h(w.shape(1)),
          c(v.shape(1)),
          hp(padded(h)),
          cp(padded(c)),
          hidden(f * hp),
          hidden_bias(hp),
          output(hp * cp),
          output_bias(cp),
          output_across(cp * hp) {
        for (std::size_t k = 0; k < f; ++k)
            for (std::size_t i = 0; i < h; ++i) hidden[k * hp + i] = float(w(k, i));
        for (std::size_t i = 0; i < h; ++i) {
            hidden_bias[i] = float(b(i));
            for (std::size_t j = 0; j < c; ++j)
                output[i * cp + j] = output_across[j * hp + i] = float(v(i, j));
        }
        for (std::size_t j = 0; j < c; ++j) output_bias[j] = float(a(j));
    }

    std::size_t size() const { return f * h + h + h * c + c; }
};

// Value and gradient of some rows, in the order of the layers, added up in double precision.
struct Sums {
    double value = 0;
    std::vector<double> gradient;
};

class Tile {
  public:
    explicit Tile(const Layers& layers)
        : p(layers),
          a(kTile * p.hp),
          da(kTile * p.hp),
          z(kTile * p.cp),
          dw(p.f * p.hp),
          dv(p.hp * p.cp),
          db(p.hp) {}

    void add(const float* x, const std::int32_t* classes, std::size_t n, Sums& sums) {
        for (std::size_t r = 0; r < n; ++r)
            std::copy(p.hidden_bias.begin(), p.hidden_bias.end(), a.begin() + r * p.hp);
        multiply(x, n, p.f, 1, p.hidden.data(), p.hp, p.f, a.data());
        squash(n * p.hp);
        for (std::size_t r = 0; r < n; ++r)
            std::copy(p.output_bias.begin(), p.output_bias.end(), z.begin() + r * p.cp);
        multiply(a.data(), n, p.hp, 1, p.output.data(), p.cp, p.hp, z.data());
        for (std::size_t r = 0; r < n; ++r) sums.value += softmax(z.data() + r * p.cp, classes[r]);
        std::fill(da.begin(), da.begin() + n * p.hp, 0.0f);
        multiply(z.data(), n, p.cp, 1, p.output_across.data(), p.hp, p.cp, da.data());
        for (std::size_t i = 0; i < n * p.hp; ++i) da[i] *= 1.0f - a[i] * a[i];
        std::fill(dw.begin(), dw.end(), 0.0f);
        multiply(x, p.f, 1, p.f, da.data(), p.hp, n, dw.data());
        std::fill(dv.begin(), dv.end(), 0.0f);
        multiply(a.data(), p.hp, 1, p.hp, z.data(), p.cp, n, dv.data());
        give(n, sums.gradient.data());
    }

  private:
    void squash(std::size_t n) {
        float* __restrict value = a.data();
        for (std::size_t i = 0; i < n; ++i) value[i] = 1.0f - 2.0f / (exponential(2.0f * value[i]) + 1.0f);
    }

    // Cross-entropy of a row; its scores become the derivatives.
    double softmax(float* row, std::int32_t wanted) const {
        const float most = *std::max_element(row, row + p.c);
        const double found = double(row[wanted]) - most;
        double total = 0;
        for (std::size_t j = 0; j < p.c; ++j) total += row[j] = exponential(row[j] - most);
        const float scale = float(1.0 / total);
        for (std::size_t j = 0; j < p.c; ++j) row[j] *= scale;
        row[wanted] -= 1.0f;
        return std::log(total) - found;
    }

    void give(std::size_t n, double* out) {
        for (std::size_t k = 0; k < p.f; ++k)
            for (std::size_t i = 0; i < p.h; ++i) *out++ += dw[k * p.hp + i];
        add_columns(da, n, p.h, p.hp, out);
        out += p.h;
        for (std::size_t i = 0; i < p.h; ++i)
            for (std::size_t j = 0; j < p.c; ++j) *out++ += dv[i * p.cp + j];
        add_columns(z, n, p.c, p.cp, out);
    }

    void add_columns(const std::vector<float>& of, std::size_t n, std::size_t wide, std::size_t stride,
                     double* out) {
        db.assign(wide, 0.0f);
        for (std::size_t r = 0; r < n; ++r)
            for (std::size_t i = 0; i < wide; ++i) db[i] += of[r * stride + i];
        for (std::size_t i = 0; i < wide; ++i) out[i] += db[i];
    }

    const Layers& p;
    std::vector<float> a, da, z, dw, dv, db;
};

std::tuple<double, Out<double>> cross_entropy(In<float, 2> x, In<std::int32_t, 1> classes,
                                              In<double, 2> hidden, In<double, 1> hidden_bias,
                                              In<double, 2> output, In<double, 1> output_bias) {
    const std::size_t n = x.shape(0);
    require(n >= 1 && n <= kMostVoxels && classes.shape(0) == n, "each row needs a class");
    for (const auto units : {x.shape(1), hidden.shape(1), output.shape(1)})
        require(units >= 1 && units <= kMostUnits, "features, units and classes must be 1 to 16384");
    require(hidden.shape(0) == x.shape(1) && hidden_bias.shape(0) == hidden.shape(1) &&
                output.shape(0) == hidden.shape(1) && output_bias.shape(0) == output.shape(1),
            "the layers do not fit each other");
    for (std::size_t r = 0; r < n; ++r)
        require(classes(r) >= 0 && std::size_t(classes(r)) < output.shape(1), "a class has no output");
    const Layers layers(hidden, hidden_bias, output, output_bias);
    NewArray<double, 1> gradient({layers.size()});
    double value = 0;
    {
        nb::gil_scoped_release nogil;
        const std::size_t parts = (n + kPart - 1) / kPart;
        std::vector<Sums> sums(parts);
        parallel_for(int(parts), [&](int part) {
            Sums& own = sums[part];
            own.gradient.assign(layers.size(), 0.0);
            Tile tile(layers);
            const std::size_t end = std::min(n, std::size_t(part + 1) * kPart);
            for (std::size_t r = std::size_t(part) * kPart; r < end; r += kTile)
                tile.add(x.data() + r * layers.f, classes.data() + r, std::min<std::size_t>(kTile, end - r),
                         own);
        });
        double* out = gradient.data.get();
        std::fill(out, out + layers.size(), 0.0);
        for (const Sums& own : sums) {
            value += own.value;
            for (std::size_t i = 0; i < layers.size(); ++i) out[i] += own.gradient[i];
        }
    }
    return {value, gradient.release()};
}

}  // namespace

void register_perceptron(nb::module_& m) {
    m.def("perceptron_cross_entropy", &cross_entropy, nb::arg("x"), nb::arg("classes"), nb::arg("hidden"),
          nb::arg("hidden_bias"), nb::arg("output"), nb::arg("output_bias"),
          "Sum over rows of the cross-entropy of softmax(tanh(x·hidden + hidden_bias)·output + output_bias), "
          "and its "
          "gradient by the four layers, one after the other.");
}
