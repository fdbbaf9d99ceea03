#include "arrays.hpp"

void register_refine(regweave::nb::module_&) {}
