#include "arrays.hpp"

void register_cost_volume(regweave::nb::module_&) {}
