// Sum of absolute coefficients of the two-level orthonormal Haar transform of 4×4×4 blocks, eight voxels at a
// time.
#pragma once

#include <cstddef>

#include "shared/costs.hpp"
#include "simd.hpp"

namespace regweave {

// The two neighbours a, b along z of a band give |a + b| + |a − b| = 2 max(|a|, |b|): `swap` puts each beside
// the other, so no sum of low and high pass need be formed where both are only added up.
//
// Adds to fine the level-1 details and to coarse all level-2 bands of the block(s) whose row (x, y) starts at
// rows[x] + y * stride; 8 lanes are two blocks side by side. fine is to be scaled by 2^-3/2, coarse by 2^-4.
template <V8 (*Load)(const float*)>
inline void haar_block(const float* const* rows, std::size_t stride, std::size_t offset, V8& fine,
                       V8& coarse) {
    V8 low[2][2];
    for (int x = 0; x < 2; ++x)
        for (int y = 0; y < 2; ++y) {
            const float* p0 = rows[2 * x] + offset + 2 * y * stride;
            const float* p1 = rows[2 * x + 1] + offset + 2 * y * stride;
            const V8 v00 = Load(p0), v01 = Load(p0 + stride), v10 = Load(p1), v11 = Load(p1 + stride);
            const HaarSquare<V8> square(v00, v01, v10, v11);
            const V8 sd = absolute(square.sd), ds = absolute(square.ds), dd = absolute(square.dd);
            fine += larger(sd, swap1(sd)) + larger(ds, swap1(ds)) + larger(dd, swap1(dd));
            const V8 other = swap1(square.ss);
            fine += 0.5f * absolute(square.ss - other);
            low[x][y] = square.ss + other;  // both lanes of a pair contain its sum
        }
    const HaarSquare<V8> square(low[0][0], low[0][1], low[1][0], low[1][1]);
    const V8 bands[4] = {absolute(square.ss), absolute(square.sd), absolute(square.ds), absolute(square.dd)};
    for (const V8& v : bands) coarse += larger(v, swap2(v));
}

}  // namespace regweave
