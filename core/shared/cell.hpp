// Interpolation between the eight voxels round a position. Positions outside the grid are clamped to its
// border.
#pragma once

#include "shared/body.hpp"

namespace regweave {

// A position on an axis whose last voxel is given; this order takes NaN to 0.
REGWEAVE_BODY double clamped(double position, double last) { return least(most(0.0, position), last); }

// The cell of an axis of n voxels that contains a position. The last cell also contains the border voxel,
// with the fraction 1, so that both its voxels exist.
struct AxisCell {
    int cell;
    double fraction;
    bool outside;

    REGWEAVE_BODY AxisCell(double position, int n) {
        const double x = clamped(position, n - 1);
        cell = least(int(x), most(n - 2, 0));
        fraction = x - cell;
        outside = x != position;
    }
};

// A voxel extends half a spacing beyond its centre. Many grids are half a voxel apart, so a little more is
// inside: the rounding of a header must not decide.
constexpr double kReach = 0.5 + 1e-4;
REGWEAVE_BODY bool inside_axis(double position, int n) {
    return (position >= -kReach) & (position <= n - 1 + kReach);
}

// Value between the eight voxels from v on; s are the distances to the next voxels, f the fractions.
template <class Step>
REGWEAVE_BODY float trilinear(const float* v, Step s0, Step s1, Step s2, float f0, float f1, float f2) {
    const float v00 = mix(v[0], v[s2], f2), v01 = mix(v[s1], v[s1 + s2], f2);
    const float v10 = mix(v[s0], v[s0 + s2], f2), v11 = mix(v[s0 + s1], v[s0 + s1 + s2], f2);
    return mix(mix(v00, v01, f1), mix(v10, v11, f1), f0);
}

// The cell of a grid of n voxels that contains a position.
struct Cell {
    Index corner;   // its lowest voxel
    float f[3];     // fractions of the way to its highest voxel
    Index step[3];  // to the next voxel along each axis, 0 along an axis of one voxel

    Cell() = default;
    REGWEAVE_BODY Cell(const int* n, const double* position) : corner(0) {
        const Index stride[3] = {Index(n[1]) * n[2], n[2], 1};
        for (int a = 0; a < 3; ++a) {
            const AxisCell axis(position[a], n[a]);
            f[a] = float(axis.fraction);
            corner += axis.cell * stride[a];
            step[a] = n[a] > 1 ? stride[a] : 0;
        }
    }

    REGWEAVE_BODY float sample(const float* data) const {
        return trilinear(data + corner, step[0], step[1], step[2], f[0], f[1], f[2]);
    }

    REGWEAVE_BODY std::int32_t nearest(const std::int32_t* labels) const {
        Index v = corner;
        for (int a = 0; a < 3; ++a) v += f[a] >= 0.5f ? step[a] : 0;
        return labels[v];
    }

    // The label with the largest sum of trilinear weights. The nearest one wins a tie, otherwise the
    // smallest.
    REGWEAVE_BODY std::int32_t voted(const std::int32_t* labels) const {
        std::int32_t value[8];
        bool uniform = true;
        for (int c = 0; c < 8; ++c) {
            value[c] = labels[corner + (c & 4 ? step[0] : 0) + (c & 2 ? step[1] : 0) + (c & 1 ? step[2] : 0)];
            uniform = uniform && value[c] == value[0];
        }
        if (uniform) return value[0];
        double weight[8];
        for (int c = 0; c < 8; ++c) {
            weight[c] = 1.0;
            for (int a = 0; a < 3; ++a) weight[c] *= (c >> (2 - a)) & 1 ? double(f[a]) : 1.0 - double(f[a]);
        }
        const std::int32_t nearest_label = nearest(labels);
        std::int32_t best = nearest_label;
        double best_sum = -1.0;
        for (int c = 0; c < 8; ++c) {
            double sum = 0.0;
            for (int other = 0; other < 8; ++other) sum += value[other] == value[c] ? weight[other] : 0.0;
            const bool tie_won = value[c] == nearest_label || (best != nearest_label && value[c] < best);
            if (sum > best_sum || (sum == best_sum && tie_won)) {
                best_sum = sum;
                best = value[c];
            }
        }
        return best;
    }
};

// Value of a field (3, X, Y, Z) at a position and its derivatives [component][axis], in float64. Derivatives
// along an axis are 0 where the position is clamped.
REGWEAVE_BODY void linearise(const int* n, const float* field, const double* position, double* value,
                             double (*gradient)[3]) {
    const Index stride[3] = {Index(n[1]) * n[2], n[2], 1}, volume = stride[0] * n[0];
    Index corner = 0, step[3];
    double f[3];
    bool outside[3];
    for (int a = 0; a < 3; ++a) {
        const AxisCell axis(position[a], n[a]);
        f[a] = axis.fraction;
        outside[a] = axis.outside;
        corner += axis.cell * stride[a];
        step[a] = n[a] > 1 ? stride[a] : 0;
    }
    for (int component = 0; component < 3; ++component) {
        // One axis after the other: the four edges along the last one, the two faces between them, the cell.
        const float* v = field + component * volume + corner;
        double at[2], along_y[2], along_z[2], *g = gradient[component];
        for (int x = 0; x < 2; ++x, v += step[0]) {
            const double low = v[0], high = v[step[1]];
            const double low_z = v[step[2]] - low, high_z = v[step[1] + step[2]] - high;
            const double first = low + f[2] * low_z, second = high + f[2] * high_z;
            along_y[x] = second - first;
            along_z[x] = low_z + f[1] * (high_z - low_z);
            at[x] = first + f[1] * along_y[x];
        }
        g[0] = at[1] - at[0];
        g[1] = along_y[0] + f[0] * (along_y[1] - along_y[0]);
        g[2] = along_z[0] + f[0] * (along_z[1] - along_z[0]);
        value[component] = at[0] + f[0] * g[0];
        for (int a = 0; a < 3; ++a) g[a] = outside[a] ? 0.0 : g[a];
    }
}

}  // namespace regweave
