#include "arrays.hpp"

void register_deformation(regweave::nb::module_&) {}
