#include "arrays.hpp"

void register_inference(regweave::nb::module_&) {}
