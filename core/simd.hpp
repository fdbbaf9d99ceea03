// Eight floats at a time, in a form that every GCC and clang lowers to what the processor has.
#pragma once

#include <cmath>
#include <cstring>

namespace regweave {

typedef float V8 __attribute__((vector_size(32)));
typedef int I8 __attribute__((vector_size(32)));

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

inline float absolute(float v) { return std::fabs(v); }

inline V8 absolute(V8 v) {
    const I8 mask = {0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff,
                     0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff};
    return reinterpret_cast<V8>(reinterpret_cast<I8>(v) & mask);
}

}  // namespace regweave
