// Eight floats at a time. GCC and clang lower their vector type to what the processor has; other compilers,
// and builds with REGWEAVE_PORTABLE_SIMD, get a plain array of eight with the same operations in the same
// order.
#pragma once

#include <cmath>
#include <cstring>

#include "shared/body.hpp"

#if !defined(REGWEAVE_PORTABLE_SIMD) && (defined(__GNUC__) || defined(__clang__)) && !defined(_MSC_VER)
#define REGWEAVE_VECTOR_TYPE 1
#endif

namespace regweave {

#if defined(REGWEAVE_VECTOR_TYPE)

typedef float V8 __attribute__((vector_size(32)));
typedef int I8 __attribute__((vector_size(32)));

inline V8 absolute(V8 v) {
    const I8 mask = {0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff,
                     0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff};
    return reinterpret_cast<V8>(reinterpret_cast<I8>(v) & mask);
}

inline V8 larger(V8 a, V8 b) { return a > b ? a : b; }

// Each lane beside its neighbour, and each pair of lanes beside the next pair.
#if defined(__clang__)
inline V8 swap1(V8 v) { return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6); }
inline V8 swap2(V8 v) { return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5); }
#else
inline V8 swap1(V8 v) { return __builtin_shuffle(v, I8{1, 0, 3, 2, 5, 4, 7, 6}); }
inline V8 swap2(V8 v) { return __builtin_shuffle(v, I8{2, 3, 0, 1, 6, 7, 4, 5}); }
#endif

#else

struct V8 {
    float lane[8];

    float& operator[](int i) { return lane[i]; }
    float operator[](int i) const { return lane[i]; }
};

template <class Lane>
inline V8 by_lane(const Lane& value) {
    V8 out;
    for (int i = 0; i < 8; ++i) out[i] = value(i);
    return out;
}

inline V8 operator+(const V8& a, const V8& b) {
    return by_lane([&](int i) { return a[i] + b[i]; });
}
inline V8 operator-(const V8& a, const V8& b) {
    return by_lane([&](int i) { return a[i] - b[i]; });
}
inline V8 operator*(const V8& a, const V8& b) {
    return by_lane([&](int i) { return a[i] * b[i]; });
}
inline V8 operator*(float a, const V8& b) {
    return by_lane([&](int i) { return a * b[i]; });
}
inline V8& operator+=(V8& a, const V8& b) { return a = a + b; }

inline V8 absolute(const V8& v) {
    return by_lane([&](int i) { return std::fabs(v[i]); });
}
inline V8 larger(const V8& a, const V8& b) {
    return by_lane([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline V8 swap1(const V8& v) {
    return by_lane([&](int i) { return v[i ^ 1]; });
}
inline V8 swap2(const V8& v) {
    return by_lane([&](int i) { return v[i ^ 2]; });
}

#endif

// As many floats as one register holds: wider vectors would be kept in memory by loops that hold many.
#if defined(REGWEAVE_VECTOR_TYPE) && !defined(__AVX__)
typedef float Register __attribute__((vector_size(16)));
#else
typedef V8 Register;
#endif
constexpr int kRegister = sizeof(Register) / sizeof(float);

template <class V>
inline V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
inline void store(float* p, V v) {
    std::memcpy(p, &v, sizeof v);
}

inline V8 load8(const float* p) { return load<V8>(p); }

// Four values and four zeros.
inline V8 load4(const float* p) {
    V8 v = {};
    std::memcpy(&v, p, sizeof v / 2);
    return v;
}

inline float sum8(const V8& v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

}  // namespace regweave
