// The extension module: one register_*() per concept, each in the file that carries its name. The same
// sources make one module for each instruction set, REGWEAVE_MODULE; Python chooses among them.
#include <nanobind/nanobind.h>

#include "parallel.hpp"
#include "processor.hpp"

namespace nb = nanobind;

void register_bending(nb::module_&);
void register_slopes(nb::module_&);
void register_correlation_ratio(nb::module_&);
void register_cost_volume(nb::module_&);
void register_deformation(nb::module_&);
void register_descent(nb::module_&);
void register_filters(nb::module_&);
void register_fusion(nb::module_&);
void register_hold_back(nb::module_&);
void register_inference(nb::module_&);
void register_intensity(nb::module_&);
void register_numbers(nb::module_&);
void register_network(nb::module_&);
void register_perceptron(nb::module_&);
void register_plane_distance(nb::module_&);
void register_refine(nb::module_&);
void register_self_similarity(nb::module_&);
void register_support_shares(nb::module_&);
void register_surface(nb::module_&);
void register_unaries(nb::module_&);
void register_voxels(nb::module_&);

NB_MODULE(REGWEAVE_MODULE, m) {
    m.doc() = "Compiled kernels of regweave: arrays in, arrays out.";
    m.def("has_avx2", &regweave::has_avx2, "Whether this processor runs the kernels compiled for AVX2.");
    m.def("set_threads", &regweave::set_threads, nb::arg("n"),
          "Use n threads in every kernel that this thread calls from now on; return the number used before.");
    m.def("threads", &regweave::threads,
          "Number of threads the kernels use when this thread calls them; 1 in a new thread.");
    register_bending(m);
    register_slopes(m);
    register_correlation_ratio(m);
    register_cost_volume(m);
    register_deformation(m);
    register_descent(m);
    register_filters(m);
    register_fusion(m);
    register_hold_back(m);
    register_inference(m);
    register_intensity(m);
    register_numbers(m);
    register_network(m);
    register_perceptron(m);
    register_plane_distance(m);
    register_refine(m);
    register_self_similarity(m);
    register_support_shares(m);
    register_surface(m);
    register_unaries(m);
    register_voxels(m);
}
