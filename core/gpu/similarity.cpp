// Self-similarity of an image on a GPU.
#include "similarity.hpp"

#include "seam.hpp"
#include "totals.hpp"

namespace regweave::gpu {
namespace {

Array self_similarity(const Array& image, const In<std::int32_t, 3>& pairs, int radius, double low,
                      double high) {
    const Extent grid = image.extent();
    const float* p = image.data<float>(3);
    require(pairs.shape(0) >= 1 && pairs.shape(0) <= 4096 && pairs.shape(1) == 2 && pairs.shape(2) == 3,
            "pairs must have shape (C, 2, 3), C from 1 to 4096");
    for (std::size_t i = 0; i < pairs.size(); ++i)
        require(std::abs(double(pairs.data()[i])) <= 1024, "offsets must be within 1024 voxels");
    require(radius >= 0 && radius <= 1024, "the radius must be 0 to 1024 voxels");
    require(std::isfinite(high) && low > 0.0 && low <= high, "0 < low <= high must hold");
    const int channels = int(pairs.shape(0));
    auto shape = image.shape();
    shape.insert(shape.begin(), pairs.shape(0));
    const Array one = make<float>(image, shape), two = make<float>(image, shape);
    const Array offsets = make<std::int32_t>(image, {pairs.size()}),
                variance = make<float>(image, image.shape());
    float *a = one.data<float>(4), *b = two.data<float>(4), *noise = variance.data<float>(3);
    Queue& q = image.queue();
    const Index n = grid.volume();
    q.upload(offsets.raw(), pairs.data(), offsets.bytes());
    q.launch(PairSquares{p, grid, offsets.data<std::int32_t>(1), channels, a}, n);
    q.launch(AxisSums{a, grid, 2, radius, channels, b}, n);
    q.launch(AxisSums{b, grid, 1, radius, channels, a}, n);
    q.launch(AxisSums{a, grid, 0, radius, channels, b}, n);
    q.launch(PatchVariance{b, grid, channels, radius, noise}, n);
    const Array total = row_sums(image, noise, 1, n);
    q.launch(PatchSimilarity{b, noise, total.data<double>(1), n, channels, float(low), float(high)}, n);
    return two;
}

}  // namespace

void register_similarity(nb::module_& m) {
    using namespace nb::literals;
    m.def("self_similarity", &self_similarity, "image"_a, "pairs"_a, "radius"_a, "low"_a, "high"_a,
          "Similarity of the patches at each pair of offsets (C, 2, 3), shape (C, X, Y, Z).");
}

}  // namespace regweave::gpu
