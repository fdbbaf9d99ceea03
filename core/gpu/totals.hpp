// Sums of rows in float64 and smallest values, on the GPU and brought to the host.
#pragma once

#include <algorithm>

#include "array.hpp"
#include "sums.hpp"

namespace regweave::gpu {

// Sums of rows (rows, n) of some thousand values at most, on the GPU, in one launch: (rows,).
inline Array short_row_sums(const Array& beside, const double* values, std::size_t rows, Index n) {
    const Array out = make<double>(beside, {rows});
    RowTree tree{values, n, out.data<double>(1)};
#if defined(REGWEAVE_TWIN)
    beside.queue().launch(tree, Index(rows));
#else
    void* arguments[] = {&tree};
    beside.queue().launch_named("regweave_RowTree", Index(rows), kTree, arguments);
#endif
    return out;
}

// The same for rows of any length: strands of each row first.
template <class T>
Array row_sums(const Array& beside, const T* values, std::size_t rows, Index n) {
    const Array strands = make<double>(beside, {rows * kStrands});
    beside.queue().launch(StrandSums<T>{values, n, strands.template data<double>(1)}, Index(rows) * kStrands);
    return short_row_sums(beside, strands.template data<double>(1), rows, kStrands);
}

// Values on the host; waits.
inline std::vector<double> fetched(const Array& sums) {
    Queue& q = sums.queue();
    double* memory = static_cast<double*>(q.take_pinned(sums.bytes()));
    q.download(memory, sums.raw(), sums.bytes());
    std::vector<double> out(memory, memory + sums.size());
    q.give_pinned(memory);
    return out;
}

inline float least_of(const Array& beside, const float* values, Index n) {
    require(n > 0, "an empty array has no smallest value");
    Queue& q = beside.queue();
    const Array strands = make<float>(beside, {kStrands}), leaves = make<float>(beside, {kTree});
    q.launch(StrandLeast{values, n, strands.data<float>(1)}, kStrands);
    q.launch(TreeLeast{strands.data<float>(1), leaves.data<float>(1)}, kTree);
    std::vector<float> found(kTree);
    q.download(found.data(), leaves.raw(), leaves.bytes());
    return *std::min_element(found.begin(), found.end());
}

// Channels (C, X, Y, Z) smoothed along each axis by the weights of one side, the voxel itself first.
Array gaussian(const Array& image, const std::array<std::vector<double>, 3>& weights);

}  // namespace regweave::gpu
