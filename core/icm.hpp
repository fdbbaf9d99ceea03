// Iterated conditional modes. Besag (1986), "On the statistical analysis of dirty pictures", JRSS B 48(3).
#pragma once

#include <array>
#include <vector>

#include "label_grid.hpp"

namespace regweave {

// Gives each node in raster order the best label for its neighbours' labels; true where one changed.
inline bool icm_sweep(const GridEnergy& e, std::vector<int>& x, std::vector<double>& cost) {
    bool changed = false;
    for (int p = 0; p < e.n_nodes; ++p) {
        std::copy_n(e.unary_of(p), e.n_labels, cost.data());
        for (int axis = 0; axis < 3; ++axis)
            for (int side : {-1, 1}) {
                const int c = e.coordinate(p, axis) + side, q = p + side * e.stride[axis];
                if (c < 0 || c >= e.shape[axis]) continue;
                for (int l = 0; l < e.n_labels; ++l) cost[l] += e.pairwise(p, q, l, x[q]);
            }
        const int best = first_minimum(cost.data(), e.n_labels);
        if (cost[best] < cost[x[p]]) {
            x[p] = best;
            changed = true;
        }
    }
    return changed;
}

}  // namespace regweave
