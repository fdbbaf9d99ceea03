// Σ w · (1 − ρ), or Σ w · (1 − ρ²), with ρ the correlation in the cube of side 2r + 1 round each voxel, and
// its derivative by the moved image: ∂ρ(x)/∂m(y) = [(f(y) − E f)/√(v_m v_f) − ρ (m(y) − E m)/v_m] / n for
// every y in the cube of x.
#pragma once

#include <cmath>
#include <vector>

#include "local_sums.hpp"
#include "memory.hpp"
#include "shared/costs.hpp"

namespace regweave {

class LocalCorrelation {
  public:
    LocalCorrelation(const float* fixed, const float* moved, const float* weight, Extent n, int radius,
                     float floor)
        : f_(fixed),
          m_(moved),
          w_(weight),
          n_(n),
          r_(radius),
          floor_(floor),
          tiles_(n),
          slopes_(3 * n.volume()) {
        for (int k = 0; k < n.nz; ++k) share_z_.push_back(1.0f / float(local_count(n.nz, r_, k)));
    }

    // The cost; keeps α = w/(n √(v_m v_f)), β = w ρ/(n v_m) and γ = α E f − β E m of each voxel.
    template <bool Squared>
    double cost() {
        std::vector<double> parts(tiles_.count(), 0.0);
        const auto source = [&](int i, int j, float* row, std::size_t stride) {
            products(i, j, row, stride);
        };
        parallel_for(tiles_.count(), [&](int tile) {
            std::vector<float> costs(n_.nz);
            const auto sink = [&](int i, int j, const float* sums) {
                correlate<Squared>(i, j, sums, costs.data());
                parts[tile] += row_sum(costs.data(), n_.nz);
            };
            tile_sums<5>(tiles_, tile, r_, source, sink);
        });
        double total = 0;
        for (double part : parts) total += part;
        return total;
    }

    // Calls add(i, j, slope) with ∂cost/∂m of each row; cost() has been called.
    template <class Add>
    void derivative(const Add& add) const {
        const auto source = [&](int i, int j, float* row, std::size_t stride) {
            for (int q = 0; q < 3; ++q)
                std::copy_n(&slopes_[q * n_.volume() + n_.row(i, j)], n_.nz, row + q * stride);
        };
        parallel_for(tiles_.count(), [&](int tile) {
            std::vector<float> slope(n_.nz);
            const auto sink = [&](int i, int j, const float* sums) {
                const std::size_t at = n_.row(i, j);
                const float *a = sums, *b = sums + n_.nz, *c = sums + 2 * n_.nz;
                for (int k = 0; k < n_.nz; ++k) slope[k] = -(f_[at + k] * a[k] - m_[at + k] * b[k] - c[k]);
                add(i, j, slope.data());
            };
            tile_sums<3>(tiles_, tile, r_, source, sink);
        });
    }

  private:
    const float *f_, *m_, *w_;
    Extent n_;
    int r_;
    float floor_;
    Tiles tiles_;
    Buffer<float> slopes_;
    std::vector<float> share_z_;

    void products(int i, int j, float* __restrict row, std::size_t stride) const {
        const float *f = f_ + n_.row(i, j), *m = m_ + n_.row(i, j);
        for (int k = 0; k < n_.nz; ++k) {
            row[k] = f[k];
            row[stride + k] = m[k];
            row[2 * stride + k] = f[k] * f[k];
            row[3 * stride + k] = m[k] * m[k];
            row[4 * stride + k] = f[k] * m[k];
        }
    }

    template <bool Squared>
    void correlate(int i, int j, const float* __restrict sums, float* __restrict costs) {
        const std::size_t at = n_.row(i, j), volume = n_.volume();
        const int nz = n_.nz;
        const float share = 1.0f / float(local_count(n_.nx, r_, i) * local_count(n_.ny, r_, j)),
                    floor = floor_;
        const float* __restrict w = w_ + at, * __restrict share_z = share_z_.data();
        float* __restrict alphas = &slopes_[at], * __restrict betas = &slopes_[volume + at], * __restrict gammas = &slopes_[2 * volume + at];
        for (int k = 0; k < nz; ++k) {
            const CorrelationSlope slope(share * share_z[k], sums[k], sums[nz + k], sums[2 * nz + k],
                                         sums[3 * nz + k], sums[4 * nz + k], w[k], floor, Squared);
            costs[k] = slope.cost;
            alphas[k] = slope.alpha;
            betas[k] = slope.beta;
            gammas[k] = slope.gamma;
        }
    }
};

}  // namespace regweave
