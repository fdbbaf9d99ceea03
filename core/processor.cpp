// What the kernels were compiled for. This file has their flags, module.cpp, which asks, has none, so that
// the question can be put on a processor that cannot run them.
#include "processor.hpp"

namespace regweave {

#if defined(__AVX2__)
const bool kernels_need_avx2 = true;
#else
const bool kernels_need_avx2 = false;
#endif

}  // namespace regweave
