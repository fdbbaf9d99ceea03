// Arithmetic on fields and images, voxel by voxel: what NumPy would do on one thread and into fresh pages.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "arrays.hpp"
#include "parallel.hpp"
#include "require.hpp"

namespace {

using namespace regweave;
using Shape = std::array<std::size_t, 3>;

// Calls part(channel, begin, end) for the planes of all channels; begin and end count voxels of the channel.
template <class Part>
void by_planes(std::size_t channels, const Shape& n, const Part& part) {
    const std::size_t plane = n[1] * n[2];
    require(channels <= kMostVoxels / n[0], "the array has too many planes");
    parallel_for(int(channels * n[0]), [&](int task) {
        const std::size_t i = task % n[0];
        part(task / n[0], i * plane, (i + 1) * plane);
    });
}

Out<float> zero_field(Shape shape) {
    const std::size_t volume = require_grid(shape, "the grid of the result");
    NewArray<float, 4> out({3, shape[0], shape[1], shape[2]});
    {
        nb::gil_scoped_release nogil;
        by_planes(3, shape, [&](std::size_t c, std::size_t begin, std::size_t end) {
            std::fill(out.data.get() + c * volume + begin, out.data.get() + c * volume + end, 0.0f);
        });
    }
    return out.release();
}

Out<float> scale_channels(In<float, 4> images, In<float, 1> factors) {
    const Shape n = require_volume(images, "the images");
    const std::size_t channels = images.shape(0), volume = n[0] * n[1] * n[2];
    require(factors.shape(0) == channels, "there must be a factor for each channel");
    NewArray<float, 4> out({channels, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        by_planes(channels, n, [&](std::size_t c, std::size_t begin, std::size_t end) {
            const float *in = images.data() + c * volume, factor = factors.data()[c];
            float* __restrict target = out.data.get() + c * volume;
            for (std::size_t v = begin; v < end; ++v) target[v] = factor * in[v];
        });
    }
    return out.release();
}

// Products are added in the order of the columns, those with a zero left out.
Out<float> turn_vectors(In<float, 4> vectors, std::array<std::array<float, 3>, 3> matrix) {
    const Shape n = require_volume(vectors, "the vectors");
    require(vectors.shape(0) == 3, "vectors must have shape (3, X, Y, Z)");
    for (const auto& row : matrix) require_finite(row, "the matrix must be finite");
    const std::size_t volume = n[0] * n[1] * n[2];
    NewArray<float, 4> out({3, n[0], n[1], n[2]});
    {
        nb::gil_scoped_release nogil;
        by_planes(3, n, [&](std::size_t row, std::size_t begin, std::size_t end) {
            float* __restrict target = out.data.get() + row * volume;
            std::fill(target + begin, target + end, 0.0f);
            for (std::size_t column = 0; column < 3; ++column) {
                const float factor = matrix[row][column];
                const float* in = vectors.data() + column * volume;
                for (std::size_t v = begin; factor != 0.0f && v < end; ++v) target[v] += factor * in[v];
            }
        });
    }
    return out.release();
}

// Axis a of the result runs along axis order[a] of the input, backwards where the step is -1.
Out<float> arrange(In<float, 4> images, std::array<int, 3> order, std::array<int, 3> steps) {
    const Shape n = require_volume(images, "the images");
    const std::size_t channels = images.shape(0), volume = n[0] * n[1] * n[2];
    const std::ptrdiff_t strides[3] = {std::ptrdiff_t(n[1] * n[2]), std::ptrdiff_t(n[2]), 1};
    Shape shape;
    std::ptrdiff_t stride[3], first = 0;
    for (int a = 0; a < 3; ++a) {
        require(order[a] >= 0 && order[a] < 3 && order[a] != order[(a + 1) % 3], "each axis must come once");
        require(steps[a] == 1 || steps[a] == -1, "a step along an axis is 1 or -1");
        shape[a] = n[order[a]];
        stride[a] = steps[a] * strides[order[a]];
        first += steps[a] > 0 ? 0 : std::ptrdiff_t(shape[a] - 1) * strides[order[a]];
    }
    // Where neighbours of the input lie in different planes of the result, several planes are filled side by
    // side: each line of memory that is read serves them all.
    const std::size_t width = stride[0] == 1 || stride[0] == -1 ? 16 : 1,
                      blocks = (shape[0] + width - 1) / width;
    require(channels <= kMostVoxels / shape[0], "the array has too many planes");
    NewArray<float, 4> out({channels, shape[0], shape[1], shape[2]});
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(channels * blocks), [&](int task) {
            const std::size_t c = task / blocks, i = task % blocks * width,
                              planes = std::min(width, shape[0] - i);
            const float* block = images.data() + c * volume + first + std::ptrdiff_t(i) * stride[0];
            float* target = out.data.get() + c * volume + i * shape[1] * shape[2];
            for (std::size_t j = 0; j < shape[1]; ++j, target += shape[2]) {
                const float* row = block + std::ptrdiff_t(j) * stride[1];
                if (stride[2] == 1)
                    for (std::size_t p = 0; p < planes; ++p)
                        std::copy_n(row + std::ptrdiff_t(p) * stride[0], shape[2],
                                    target + p * shape[1] * shape[2]);
                else
                    for (std::size_t k = 0; k < shape[2]; ++k)
                        for (std::size_t p = 0; p < planes; ++p)
                            target[p * shape[1] * shape[2] + k] =
                                row[std::ptrdiff_t(p) * stride[0] + std::ptrdiff_t(k) * stride[2]];
            }
        });
    }
    return out.release();
}

// A component as the nearest multiple of a step, which is a power of two; no negative zeros.
inline float near(float v, float step) { return std::nearbyint(v / step) * step + 0.0f; }

// Components are rounded one by one; where the three errors together pass the bound, the worst gets another
// bit.
inline void round_vector(const float* v, float step, float bound, float* out) {
    for (int c = 0; c < 3; ++c) out[c] = near(v[c], step);
    for (int attempt = 0; attempt < 3; ++attempt) {
        float square = 0;
        int worst = 0;
        for (int c = 0; c < 3; ++c) {
            const float error = std::fabs(v[c] - out[c]);
            square += error * error;
            if (error > std::fabs(v[worst] - out[worst])) worst = c;
        }
        if (!(square > bound * bound)) return;
        out[worst] = near(v[worst], step / 2);
    }
}

Out<float> list_vectors(In<float, 4> vectors, std::size_t first, std::size_t planes, float step,
                        float bound) {
    const Shape n = require_volume(vectors, "the vectors");
    require(vectors.shape(0) == 3, "vectors must have shape (3, X, Y, Z)");
    require(planes >= 1 && planes <= n[2] && first <= n[2] - planes, "the planes must be those of the field");
    require(std::isfinite(step) && step >= 0, "the step must be finite and 0 or more");
    require(std::isfinite(bound) && bound >= 0, "the bound must be finite and 0 or more");
    const std::size_t volume = n[0] * n[1] * n[2];
    NewArray<float, 4> out({planes, n[1], n[0], 3});
    {
        nb::gil_scoped_release nogil;
        parallel_for(int(n[1]), [&](int j) {
            for (std::size_t i = 0; i < n[0]; ++i) {
                const float* in = vectors.data() + (i * n[1] + j) * n[2] + first;
                for (std::size_t k = 0; k < planes; ++k) {
                    const float v[3] = {in[k], in[volume + k], in[2 * volume + k]};
                    float* target = out.data.get() + ((k * n[1] + j) * n[0] + i) * 3;
                    if (step > 0)
                        round_vector(v, step, bound, target);
                    else
                        std::copy_n(v, 3, target);
                }
            }
        });
    }
    return out.release();
}

}  // namespace

void register_voxels(nb::module_& m) {
    m.def("zero_field", &zero_field, nb::arg("shape"), "Vectors (3, X, Y, Z) of zeros.");
    m.def("scale_channels", &scale_channels, nb::arg("images"), nb::arg("factors"),
          "Multiply each channel of images (C, X, Y, Z) by its factor.");
    m.def("arrange", &arrange, nb::arg("images"), nb::arg("order"), nb::arg("steps"),
          "Images (C, X, Y, Z) with their axes in another order, backwards where the step is -1.");
    m.def("turn_vectors", &turn_vectors, nb::arg("vectors"), nb::arg("matrix"),
          "Multiply the vectors (3, X, Y, Z) by a matrix (3, 3).");
    m.def("list_vectors", &list_vectors, nb::arg("vectors"), nb::arg("first"), nb::arg("planes"),
          nb::arg("step"), nb::arg("bound"),
          "Vectors (3, X, Y, Z) of some planes as a list (Z, Y, X, 3), rounded to multiples of a step.");
}
