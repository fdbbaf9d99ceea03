#include "processor.hpp"

#if defined(_MSC_VER) && defined(_M_X64)
#define REGWEAVE_X86_64 1
#include <immintrin.h>
#include <intrin.h>
#elif defined(__x86_64__)
#define REGWEAVE_X86_64 1
#include <cpuid.h>
#endif

namespace regweave {

#if defined(REGWEAVE_X86_64)

namespace {

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

// The answer of the processor, zeros where it does not know the question.
Registers ask(unsigned leaf) {
    Registers r;
#if defined(_MSC_VER)
    int values[4];
    __cpuid(values, int(leaf & 0x80000000u));
    if (unsigned(values[0]) < leaf) return r;
    __cpuidex(values, int(leaf), 0);
    r = {unsigned(values[0]), unsigned(values[1]), unsigned(values[2]), unsigned(values[3])};
#else
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

// Registers that the system keeps when it switches between programs.
unsigned kept_registers() {
#if defined(_MSC_VER)
    return unsigned(_xgetbv(0));
#else
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
#endif
}

constexpr unsigned bit(int n) { return 1u << n; }

bool all(unsigned value, unsigned bits) { return (value & bits) == bits; }

}  // namespace

bool has_avx2() {
    // FMA, MOVBE, OSXSAVE, AVX, F16C; SSE and AVX registers kept; BMI1, AVX2, BMI2; LZCNT.
    return all(ask(1).c, bit(12) | bit(22) | bit(27) | bit(28) | bit(29)) && all(kept_registers(), 6) &&
           all(ask(7).b, bit(3) | bit(5) | bit(8)) && all(ask(0x80000001u).c, bit(5));
}

#else

bool has_avx2() { return false; }

#endif

}  // namespace regweave
