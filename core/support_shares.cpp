// Shares of whole numbers, such as classes, and means of values in the support of each node.
#include <nanobind/stl/array.h>

#include <atomic>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Starts = In<std::int32_t, 1>;

void require_supports(const Starts& starts, int size, std::size_t length) {
    require(starts.shape(0) >= 1 && size >= 1 && std::size_t(size) <= length,
            "a support must have a voxel along each axis and no more than the image");
    for (std::size_t i = 0; i < starts.shape(0); ++i)
        require(starts(i) >= 0 && std::size_t(starts(i)) <= length - size,
                "supports must lie inside the image");
}

Out<float> support_shares(In<std::int32_t, 3> numbers, Starts sx, Starts sy, Starts sz,
                          std::array<int, 3> size, int n) {
    const auto shape = require_volume(numbers, "the image of numbers");
    require(n >= 1 && n <= 65536, "there must be 1 to 65536 numbers");
    const Starts* starts[3] = {&sx, &sy, &sz};
    for (int a = 0; a < 3; ++a) require_supports(*starts[a], size[a], shape[a]);
    const std::size_t nodes =
        require_grid(std::array<std::size_t, 3>{sx.shape(0), sy.shape(0), sz.shape(0)}, "the grid of nodes");
    NewArray<float, 2> out({nodes, std::size_t(n)});
    std::atomic<bool> strange{false};
    {
        nb::gil_scoped_release nogil;
        const double voxels = double(size[0]) * size[1] * size[2];
        parallel_for(int(sx.shape(0)), [&](int p) {
            std::vector<std::uint32_t> count(n + 1);  // the last for what is no number
            float* target = out.data.get() + p * sy.shape(0) * sz.shape(0) * n;
            for (std::size_t q = 0; q < sy.shape(0); ++q)
                for (std::size_t r = 0; r < sz.shape(0); ++r, target += n) {
                    std::fill(count.begin(), count.end(), 0);
                    for (int x = sx(p); x < sx(p) + size[0]; ++x)
                        for (int y = sy(q); y < sy(q) + size[1]; ++y) {
                            const std::int32_t* row = numbers.data() + (x * shape[1] + y) * shape[2] + sz(r);
                            for (int z = 0; z < size[2]; ++z)
                                ++count[std::min(std::uint32_t(row[z]), std::uint32_t(n))];
                        }
                    if (count[n]) strange = true;
                    for (int c = 0; c < n; ++c) target[c] = float(count[c] / voxels);
                }
        });
    }
    require(!strange, "the image has a number that is not one of 0 to n - 1");
    return out.release();
}

Out<float> support_means(In<float, 3> values, Starts sx, Starts sy, Starts sz, std::array<int, 3> size) {
    const auto shape = require_volume(values, "the image");
    const Starts* starts[3] = {&sx, &sy, &sz};
    for (int a = 0; a < 3; ++a) require_supports(*starts[a], size[a], shape[a]);
    const std::size_t nodes =
        require_grid(std::array<std::size_t, 3>{sx.shape(0), sy.shape(0), sz.shape(0)}, "the grid of nodes");
    NewArray<float, 1> out({nodes});
    {
        nb::gil_scoped_release nogil;
        const double voxels = double(size[0]) * size[1] * size[2];
        parallel_for(int(sx.shape(0)), [&](int p) {
            float* target = out.data.get() + p * sy.shape(0) * sz.shape(0);
            for (std::size_t q = 0; q < sy.shape(0); ++q)
                for (std::size_t r = 0; r < sz.shape(0); ++r) {
                    double sum = 0;
                    for (int x = sx(p); x < sx(p) + size[0]; ++x)
                        for (int y = sy(q); y < sy(q) + size[1]; ++y) {
                            const float* row = values.data() + (x * shape[1] + y) * shape[2] + sz(r);
                            for (int z = 0; z < size[2]; ++z) sum += row[z];
                        }
                    *target++ = float(sum / voxels);
                }
        });
    }
    return out.release();
}

}  // namespace

void register_support_shares(nb::module_& m) {
    m.def("support_shares", &support_shares, nb::arg("numbers"), nb::arg("sx"), nb::arg("sy"), nb::arg("sz"),
          nb::arg("size"), nb::arg("n"), "Share of each number from 0 to n - 1 in each support, (N, n).");
    m.def("support_means", &support_means, nb::arg("values"), nb::arg("sx"), nb::arg("sy"), nb::arg("sz"),
          nb::arg("size"), "Mean of the values in each support, (N,).");
}
