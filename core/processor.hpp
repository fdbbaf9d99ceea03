// What the kernels were compiled for.
#pragma once

namespace regweave {

extern const bool kernels_need_avx2;

}  // namespace regweave
