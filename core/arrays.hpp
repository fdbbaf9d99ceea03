// Array types at the seam between Python and the kernels.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "memory.hpp"
#include "require.hpp"
#include "shared/body.hpp"

namespace regweave {

namespace nb = nanobind;

// C-contiguous input arrays; nanobind refuses another dtype or order instead of converting silently.
template <typename T, int Dim>
using In = nb::ndarray<const T, nb::ndim<Dim>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::c_contig>;

inline Matrix matrix_of(const In<double, 2>& a) {
    require(a.shape(0) == 3 && a.shape(1) == 4, "matrix must have shape (3, 4)");
    require_finite(a.data(), 12, "matrix must be finite");
    Matrix out;
    std::memcpy(out.m, a.data(), sizeof out.m);
    return out;
}

// A new array owned by Python; values are not initialised.
template <typename T, std::size_t Dim>
struct NewArray {
    std::unique_ptr<T[], GiveBack> data;
    std::array<std::size_t, Dim> shape;

    explicit NewArray(std::array<std::size_t, Dim> shape_) : shape(shape_) {
        std::size_t n = sizeof(T);
        for (auto s : shape)
            if (s && n > SIZE_MAX / s)
                throw std::invalid_argument("the result has more bytes than a machine can count");
            else
                n *= s;
        data.reset(static_cast<T*>(take_memory(n)));
    }
    Out<T> release() {
        T* raw = data.release();
        nb::capsule owner(raw, [](void* p) noexcept { give_memory_back(p); });
        return Out<T>(raw, Dim, shape.data(), owner);
    }
};

}  // namespace regweave
