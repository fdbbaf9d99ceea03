// Unary costs of an energy, eq. (1): metrics weighted by the classes of a node, the tie-break, the loss.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;

struct Weighted {
    In<float, 3> costs;
    In<float, 2> shares;     // of the classes: a row for each node, or for each label of each node
    In<double, 2> matrix;    // (M, C)
    In<double, 1> constant;  // added to each label
    std::optional<In<float, 2>> loss;
    double coefficient;

    std::size_t members() const { return costs.shape(0); }
    std::size_t nodes() const { return costs.shape(1); }
    std::size_t labels() const { return costs.shape(2); }
    bool displaced() const { return shares.shape(0) != nodes(); }

    void check() const {
        require(nodes() >= 1 && labels() >= 1, "costs (M, N, L) must have a node and a label");
        require(shares.shape(0) == nodes() || shares.shape(0) == nodes() * labels(),
                "shares must have a row for each node, or for each label of each node");
        require(matrix.shape(0) == members() && matrix.shape(1) == shares.shape(1),
                "weights (M, C) do not fit costs and shares");
        require(constant.shape(0) == labels(), "the constant (L,) does not fit the labels");
        require(!loss || (loss->shape(0) == nodes() && loss->shape(1) == labels()),
                "the loss (N, L) does not fit the costs");
    }

    double weight(std::size_t m, const float* share) const {
        double sum = 0;
        for (std::size_t c = 0; c < matrix.shape(1); ++c) sum += double(share[c]) * matrix(m, c);
        return sum;
    }

    void node(std::size_t n, double* __restrict out) const {
        const std::size_t L = labels(), C = shares.shape(1);
        std::fill_n(out, L, 0.0);
        for (std::size_t m = 0; m < members(); ++m) {
            const float* __restrict cost = costs.data() + (m * nodes() + n) * L;
            if (displaced()) {
                for (std::size_t l = 0; l < L; ++l)
                    out[l] += weight(m, shares.data() + (n * L + l) * C) * double(cost[l]);
                continue;
            }
            const double w = weight(m, shares.data() + n * C);
            for (std::size_t l = 0; l < L; ++l) out[l] += w * double(cost[l]);
        }
        for (std::size_t l = 0; l < L; ++l) out[l] += constant(l);
        if (!loss) return;
        const float* __restrict lost = loss->data() + n * L;
        for (std::size_t l = 0; l < L; ++l) out[l] += coefficient * double(lost[l]);
    }
};

Out<double> weighted_unaries(In<float, 3> costs, In<float, 2> shares, In<double, 2> matrix,
                             In<double, 1> constant, std::optional<In<float, 2>> loss, double coefficient) {
    constexpr int kBlock = 64;
    const Weighted w{costs, shares, matrix, constant, loss, coefficient};
    w.check();
    NewArray<double, 2> out({w.nodes(), w.labels()});
    {
        nb::gil_scoped_release nogil;
        parallel_for(int((w.nodes() + kBlock - 1) / kBlock), [&](int block) {
            const std::size_t begin = std::size_t(block) * kBlock, end = std::min(begin + kBlock, w.nodes());
            for (std::size_t n = begin; n < end; ++n) w.node(n, out.data.get() + n * w.labels());
        });
    }
    return out.release();
}

}  // namespace

void register_unaries(nb::module_& m) {
    using namespace nb::literals;
    m.def("weighted_unaries", &weighted_unaries, "costs"_a, "shares"_a, "matrix"_a, "constant"_a,
          "loss"_a.none(), "coefficient"_a,
          "Σ_m w_m(n, l) costs(m, n, l) + constant(l) + coefficient · loss(n, l), (N, L), where w = shares · "
          "matrixᵀ.");
}
