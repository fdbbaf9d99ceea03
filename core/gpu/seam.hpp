// What the functions that Python calls share: host arrays, and the checks of each call.
#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "array.hpp"
#include "arrays.hpp"
#include "sampling.hpp"

namespace regweave::gpu {}  // namespace regweave::gpu
