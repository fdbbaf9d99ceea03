// Weights of classes laid over the voxels of a GPU.
#include "weights.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "seam.hpp"

namespace regweave::gpu {
namespace {

std::vector<std::size_t> volume_shape(const Extent& g) {
    return {std::size_t(g.n[0]), std::size_t(g.n[1]), std::size_t(g.n[2])};
}

Array warp_numbers(const Array& labels, const In<double, 2>& matrix, const Array& u, const Array& known,
                   const Array& number, int fill) {
    const Extent to = u.extent();
    require(known.size() == number.size(), "each known label needs one number");
    const Array out = make<std::int32_t>(u, volume_shape(to));
    u.queue().launch(WarpNumbers{labels.data<std::int32_t>(3), labels.extent(), matrix_of(matrix),
                                 field_data(u), to, known.data<std::int32_t>(1), number.data<std::int32_t>(1),
                                 int(known.size()), fill, out.data<std::int32_t>(3)},
                     to.volume());
    return out;
}

Array spread(const Array& numbers, double reach, const std::array<double, 3>& voxel) {
    const Extent grid = numbers.extent();
    require_finite(voxel, "the edges of a voxel must be finite");
    for (double edge : voxel) require(edge > 0.0, "the edges of a voxel must be positive");
    require(reach >= 0.0 && reach <= 64.0, "the reach must be 0 to 64 voxels");
    const Array out = make<std::int32_t>(numbers, numbers.shape());
    numbers.queue().launch(SpreadNumbers{numbers.data<std::int32_t>(3),
                                         grid,
                                         {voxel[0], voxel[1], voxel[2]},
                                         reach,
                                         out.data<std::int32_t>(3)},
                           grid.volume());
    return out;
}

Array lay(const std::optional<Array>& numbers, const Array& values, const Array& map, double scale) {
    const Extent grid = map.extent();
    if (numbers) require_same(numbers->extent(), grid, "numbers and weights must lie on one grid");
    const Array out = make<float>(map, map.shape());
    map.queue().launch(LayWeights{numbers ? numbers->data<std::int32_t>(3) : nullptr, values.data<float>(1),
                                  map.data<float>(3), float(scale), out.data<float>(3)},
                       grid.volume());
    return out;
}

Array look_up(const Array& numbers, const Array& values) {
    const Array out = make<float>(numbers, numbers.shape());
    numbers.queue().launch(
        LayWeights{numbers.data<std::int32_t>(3), values.data<float>(1), nullptr, 1.0f, out.data<float>(3)},
        numbers.extent().volume());
    return out;
}

}  // namespace

void register_weights(nb::module_& m) {
    using namespace nb::literals;
    m.def("warp_numbers", &warp_numbers, "labels"_a, "matrix"_a, "u"_a, "known"_a, "number"_a, "fill"_a,
          "Number of the nearest moving label, 0 for labels that are not known, fill outside.");
    m.def("spread", &spread, "numbers"_a, "reach"_a, "voxel"_a,
          "Give background within a reach of a structure the number of the nearest one.");
    m.def("lay", &lay, "numbers"_a.none(), "values"_a, "map"_a, "scale"_a,
          "Value of each voxel's number, times a map and a scale; without numbers the first value.");
    m.def("look_up", &look_up, "numbers"_a, "values"_a, "Value of each voxel's number.");
}

}  // namespace regweave::gpu
