// The extension module of the GPU: queues, arrays, and one register_*() for each file of functions.
#include "seam.hpp"

namespace regweave::gpu {

void register_deform(nb::module_&);
void register_fields(nb::module_&);
void register_energies(nb::module_&);
void register_forces(nb::module_&);
void register_images(nb::module_&);
void register_search(nb::module_&);
void register_lattice(nb::module_&);
void register_outputs(nb::module_&);
void register_refine(nb::module_&);
void register_similarity(nb::module_&);
void register_weights(nb::module_&);

namespace {

template <class T>
Array upload(const std::shared_ptr<Queue>& queue,
             const nb::ndarray<const T, nb::c_contig, nb::device::cpu>& from) {
    std::vector<std::size_t> shape;
    for (std::size_t a = 0; a < from.ndim(); ++a) shape.push_back(from.shape(a));
    Array out(queue, TypeOf<T>::code, shape);
    nb::gil_scoped_release nogil;
    queue->upload(out.raw(), from.data(), out.bytes());
    return out;
}

// A NumPy array of memory that goes back to the queue when Python drops it.
template <class T>
nb::object download_as(const Array& a) {
    auto queue = a.shared_queue();
    void* memory = queue->take_pinned(a.bytes());
    {
        nb::gil_scoped_release nogil;
        queue->download(memory, a.raw(), a.bytes());
    }
    struct Loan {
        std::shared_ptr<Queue> queue;
        void* memory;
    };
    nb::capsule owner(new Loan{queue, memory}, [](void* p) noexcept {
        auto* loan = static_cast<Loan*>(p);
        loan->queue->give_pinned(loan->memory);
        delete loan;
    });
    nb::ndarray<nb::numpy, T, nb::c_contig> out(static_cast<T*>(memory), a.shape().size(), a.shape().data(),
                                                owner);
    return nb::cast(out);
}

nb::object download(const Array& a) {
    switch (a.type()) {
        case 'f':
            return download_as<float>(a);
        case 'd':
            return download_as<double>(a);
        case 'i':
            return download_as<std::int32_t>(a);
        default:
            return download_as<std::uint8_t>(a);
    }
}

Array zeros(const std::shared_ptr<Queue>& queue, const std::vector<std::size_t>& shape) {
    Array out(queue, 'f', shape);
    queue->clear(out.raw(), out.bytes());
    return out;
}

}  // namespace
}  // namespace regweave::gpu

namespace nb = nanobind;

NB_MODULE(REGWEAVE_MODULE, m) {
    using namespace regweave::gpu;
    using namespace nb::literals;
    m.doc() = "Kernels of regweave on a GPU: device arrays in, device arrays out.";
    nb::exception<OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
    m.def(
        "devices",
        [] {
            std::string why;
            std::vector<std::tuple<std::string, std::size_t, int, int>> out;
            for (const auto& d : devices(&why))
                out.emplace_back(d.name, d.memory, d.capability[0], d.capability[1]);
            return std::make_pair(out, why);
        },
        "Name, bytes and architecture of each GPU, and why there is none.");
    nb::class_<Queue>(m, "Queue")
        .def(nb::init<int>(), "ordinal"_a)
        .def_prop_ro("ordinal", &Queue::ordinal)
        .def_prop_ro("name", &Queue::name)
        .def("memory", &Queue::memory, "Bytes free and bytes in all.")
        .def("trim", &Queue::trim, "Give memory that is kept for later back to the GPU.")
        .def("wait", &Queue::wait, nb::call_guard<nb::gil_scoped_release>(), "Wait until all work is done.")
        .def("upload", &upload<float>, "array"_a.noconvert())
        .def("upload", &upload<double>, "array"_a.noconvert())
        .def("upload", &upload<std::int32_t>, "array"_a.noconvert())
        .def("upload", &upload<std::uint8_t>, "array"_a.noconvert())
        .def(
            "empty",
            [](std::shared_ptr<Queue> q, const std::vector<std::size_t>& shape) {
                return Array(q, 'f', shape);
            },
            "shape"_a, "Memory for values of type float32, not written yet.")
        .def("zeros", &zeros, "shape"_a, "Zeros of type float32.");
    nb::class_<Array>(m, "Array")
        .def_prop_ro("shape", [](const Array& a) { return nb::tuple(nb::cast(a.shape())); })
        .def_prop_ro("dtype", [](const Array& a) { return std::string(1, a.type()); })
        .def_prop_ro("nbytes", &Array::bytes)
        .def_prop_ro("queue", [](const Array& a) { return a.shared_queue(); })
        .def("numpy", &download, "Copy to the host.")
        .def("part", &Array::part, "begin"_a, "end"_a, "A part along the first axis, of the same memory.")
        .def("reshaped", &Array::reshaped, "shape"_a, "The same memory in another shape.");
    register_deform(m);
    m.def(
        "copy",
        [](const Array& from, const Array& to) {
            regweave::require(from.type() == to.type() && from.bytes() == to.bytes(),
                              "the arrays differ in size or type");
            to.queue().copy(to.raw(), from.raw(), to.bytes());
        },
        "source"_a, "target"_a, "Copy values on the GPU.");
    register_fields(m);
    register_energies(m);
    register_forces(m);
    register_images(m);
    register_search(m);
    register_lattice(m);
    register_outputs(m);
    register_refine(m);
    register_similarity(m);
    register_weights(m);
}
