// Self-similarity context (MIND-SSC): distances between pairs of neighbouring patches of each voxel.
#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "local_sums.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;

// Squared differences of the image at two offsets, edge voxels repeating outside.
struct SquaredDifference {
    const float* image;
    Extent n;
    const std::int32_t *p, *q;

    static int at(int i, int size) { return std::clamp(i, 0, size - 1); }

    void operator()(int i, int j, float* row, std::size_t) const {
        const float* a = image + n.row(at(i + p[0], n.nx), at(j + p[1], n.ny));
        const float* b = image + n.row(at(i + q[0], n.nx), at(j + q[1], n.ny));
        auto put = [&](int k) {
            const float d = a[at(k + p[2], n.nz)] - b[at(k + q[2], n.nz)];
            row[k] = d * d;
        };
        const int begin = std::min(n.nz, std::max({0, -p[2], -q[2]}));
        const int end = std::max(begin, n.nz - std::max({0, p[2], q[2]}));
        const float *ap = a + p[2], *bq = b + q[2];
        for (int k = 0; k < begin; ++k) put(k);
        for (int k = begin; k < end; ++k) row[k] = (ap[k] - bq[k]) * (ap[k] - bq[k]);
        for (int k = end; k < n.nz; ++k) put(k);
    }
};

// exp(−distance / variance) for each pair; the distances of a voxel are taken from their smallest, and its
// variance, their mean, is kept between low and high times the mean variance of the image.
Out<float> self_similarity(In<float, 3> image, In<std::int32_t, 3> pairs, int radius, float low, float high) {
    require_volume(image, "the image");
    require(pairs.shape(0) >= 1 && pairs.shape(0) <= 4096 && pairs.shape(1) == 2 && pairs.shape(2) == 3,
            "pairs must have shape (C, 2, 3), C from 1 to 4096");
    for (std::size_t i = 0; i < pairs.size(); ++i)
        require(std::abs(double(pairs.data()[i])) <= 1024, "offsets must be within 1024 voxels");
    require(pairs.shape(0) <= kMostVoxels / image.shape(0), "there are too many planes of pairs");
    require(radius >= 0 && radius <= 1024, "the radius must be 0 to 1024 voxels");
    require(std::isfinite(high) && low > 0.0f && low <= high, "0 < low <= high must hold");
    const Extent n{int(image.shape(0)), int(image.shape(1)), int(image.shape(2))};
    const int C = int(pairs.shape(0));
    NewArray<float, 4> out({std::size_t(C), image.shape(0), image.shape(1), image.shape(2)});
    float* d = out.data.get();
    {
        nb::gil_scoped_release nogil;
        Buffer<float> variance(n.volume());
        const Tiles tiles(n);
        parallel_for(C * tiles.count(), [&](int task) {
            const int c = task / tiles.count();
            const std::int32_t* pair = pairs.data() + 6 * c;
            const SquaredDifference source{image.data(), n, pair, pair + 3};
            const auto sink = [&](int i, int j, const float* sums) {
                std::copy_n(sums, n.nz, d + c * n.volume() + n.row(i, j));
            };
            tile_sums<1>(tiles, task % tiles.count(), radius, source, sink);
        });
        std::vector<double> totals(n.nx);
        parallel_for(n.nx, [&](int i) {
            double total = 0;
            for (int j = 0; j < n.ny; ++j) {
                const int rows = local_count(n.nx, radius, i) * local_count(n.ny, radius, j);
                for (int k = 0; k < n.nz; ++k) {
                    const std::size_t v = n.plane() * i + std::size_t(n.nz) * j + k;
                    float smallest = d[v], sum = 0;
                    for (int c = 1; c < C; ++c) smallest = std::min(smallest, d[c * n.volume() + v]);
                    const float scale = 1.0f / float(rows * local_count(n.nz, radius, k));
                    for (int c = 0; c < C; ++c) {
                        float& value = d[c * n.volume() + v];
                        value = (value - smallest) * scale;
                        sum += value;
                    }
                    variance[v] = sum / C;
                    total += variance[v];
                }
            }
            totals[i] = total;
        });
        double typical = 0;
        for (double t : totals) typical += t;
        typical = typical / double(n.volume()) + 1e-9;
        const float least = float(low * typical), most = float(high * typical);
        parallel_for(C * n.nx, [&](int task) {
            const std::size_t plane = n.plane() * (task % n.nx);
            float* channel = d + (task / n.nx) * n.volume() + plane;
            for (std::size_t v = 0; v < n.plane(); ++v)
                channel[v] = std::exp(-channel[v] / std::min(std::max(variance[plane + v], least), most));
        });
    }
    return out.release();
}

}  // namespace

void register_self_similarity(nb::module_& m) {
    m.def("self_similarity", &self_similarity, nb::arg("image"), nb::arg("pairs"), nb::arg("radius"),
          nb::arg("low"), nb::arg("high"),
          "Similarity of the patches at each pair of offsets (C, 2, 3), shape (C, X, Y, Z).");
}
