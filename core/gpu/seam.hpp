// What the functions that Python calls share: host arrays, and the checks of each call.
#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "array.hpp"
#include "arrays.hpp"
#include "sampling.hpp"

namespace regweave::gpu {

inline Matrix matrix_of(const In<double, 2>& a) {
    require(a.shape(0) == 3 && a.shape(1) == 4, "matrix must have shape (3, 4)");
    require_finite(a.data(), 12, "matrix must be finite");
    Matrix out;
    std::memcpy(out.m, a.data(), sizeof out.m);
    return out;
}

}  // namespace regweave::gpu
