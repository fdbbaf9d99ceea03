// Min-plus products with a separable cost: out(b) = min_a f(a) + Σ_axis t_axis(a_axis, b_axis).
// One pass for each axis of the label grid: Σ K instead of Π K operations for each label.
#pragma once

#include <array>

namespace regweave {

inline double lesser(double a, double b) { return a < b ? a : b; }

// One axis with `inner` contiguous values behind it: f and out are (outer, k, inner), t is (k, k).
// K and Inner are the sizes where they are known when compiling, zero where they are not.
template <int K, int Inner>
inline void min_plus_axis(const double* __restrict f, const double* __restrict t, int outer, int k_,
                          int inner_, double* __restrict out) {
    const int k = K ? K : k_, inner = Inner ? Inner : inner_;
    for (int o = 0; o < outer; ++o, f += k * inner, out += k * inner)
        for (int i = 0; i < inner; ++i)
            for (int b = 0; b < k; ++b) {
                double m = f[i] + t[b];
                for (int a = 1; a < k; ++a) m = lesser(f[a * inner + i] + t[a * k + b], m);
                out[b * inner + i] = m;
            }
}

// The last axis, whose values are contiguous themselves: vectorises over the result's index.
template <int K>
inline void min_plus_last(const double* __restrict f, const double* __restrict t, int outer, int k_,
                          double* __restrict out) {
    const int k = K ? K : k_;
    for (int o = 0; o < outer; ++o, f += k, out += k) {
        for (int b = 0; b < k; ++b) out[b] = f[0] + t[b];
        for (int a = 1; a < k; ++a)
            for (int b = 0; b < k; ++b) out[b] = lesser(f[a] + t[a * k + b], out[b]);
    }
}

// f is overwritten; `out` receives the result.
template <int K>
inline void min_plus_cube(double* f, const std::array<const double*, 3>& t, const std::array<int, 3>& k,
                          double* out) {
    min_plus_axis<K, K * K>(f, t[0], 1, k[0], k[1] * k[2], out);
    min_plus_axis<K, K>(out, t[1], k[0], k[1], k[2], f);
    min_plus_last<K>(f, t[2], k[0] * k[1], k[2], out);
}

inline void min_plus(double* f, const std::array<const double*, 3>& t, const std::array<int, 3>& k,
                     double* out) {
    const bool cube = k[0] == k[1] && k[1] == k[2];
    if (cube && k[0] == 3) return min_plus_cube<3>(f, t, k, out);
    if (cube && k[0] == 5) return min_plus_cube<5>(f, t, k, out);
    if (cube && k[0] == 7) return min_plus_cube<7>(f, t, k, out);
    min_plus_cube<0>(f, t, k, out);
}

// The same in place where t_axis is the weighted distance of sorted offsets: a lower envelope with two
// passes, Felzenszwalb and Huttenlocher (2006), "Efficient belief propagation for early vision", IJCV 70(1),
// section 3. step[b] is the distance from offset b to b + 1.
template <int K, int Inner>
inline void envelope_axis(double* f, const double* __restrict step, int outer, int k, int inner_) {
    const int inner = Inner ? Inner : inner_;
    if constexpr (K > 0) {
        for (int o = 0; o < outer; ++o, f += K * inner)
            for (int i = 0; i < inner; ++i) {
                double r[K];  // registers: the two passes are a chain, which memory would slow down
                for (int b = 0; b < K; ++b) r[b] = f[b * inner + i];
                for (int b = 1; b < K; ++b) r[b] = lesser(r[b - 1] + step[b - 1], r[b]);
                for (int b = K - 2; b >= 0; --b) r[b] = lesser(r[b + 1] + step[b], r[b]);
                for (int b = 0; b < K; ++b) f[b * inner + i] = r[b];
            }
    } else {
        for (int o = 0; o < outer; ++o, f += k * inner)
            for (int i = 0; i < inner; ++i) {
                for (int b = 1; b < k; ++b)
                    f[b * inner + i] = lesser(f[(b - 1) * inner + i] + step[b - 1], f[b * inner + i]);
                for (int b = k - 2; b >= 0; --b)
                    f[b * inner + i] = lesser(f[(b + 1) * inner + i] + step[b], f[b * inner + i]);
            }
    }
}

// The last axis, whose values are contiguous themselves: four lines at a time, side by side.
template <int K>
inline void envelope_last(double* f, const double* __restrict step, int lines, int k) {
    int line = 0;
    if constexpr (K > 0)
        for (; line + 4 <= lines; line += 4, f += 4 * K) {
            double r[K][4];
            for (int b = 0; b < K; ++b)
                for (int v = 0; v < 4; ++v) r[b][v] = f[v * K + b];
            for (int b = 1; b < K; ++b)
                for (int v = 0; v < 4; ++v) r[b][v] = lesser(r[b - 1][v] + step[b - 1], r[b][v]);
            for (int b = K - 2; b >= 0; --b)
                for (int v = 0; v < 4; ++v) r[b][v] = lesser(r[b + 1][v] + step[b], r[b][v]);
            for (int b = 0; b < K; ++b)
                for (int v = 0; v < 4; ++v) f[v * K + b] = r[b][v];
        }
    envelope_axis<K, 1>(f, step, lines - line, k, 1);
}

template <int K>
inline void envelope_cube(double* f, const std::array<const double*, 3>& step, const std::array<int, 3>& k) {
    envelope_axis<K, K * K>(f, step[0], 1, k[0], k[1] * k[2]);
    envelope_axis<K, K>(f, step[1], k[0], k[1], k[2]);
    envelope_last<K>(f, step[2], k[0] * k[1], k[2]);
}

inline void envelope(double* f, const std::array<const double*, 3>& step, const std::array<int, 3>& k) {
    const bool cube = k[0] == k[1] && k[1] == k[2];
    if (cube && k[0] == 3) return envelope_cube<3>(f, step, k);
    if (cube && k[0] == 5) return envelope_cube<5>(f, step, k);
    if (cube && k[0] == 7) return envelope_cube<7>(f, step, k);
    envelope_cube<0>(f, step, k);
}

}  // namespace regweave
