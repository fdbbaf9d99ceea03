// What the processor and the system that runs it can do.
#pragma once

namespace regweave {

// Whether kernels compiled for x86-64-v3 can run here: AVX2, FMA, BMI and their companions.
bool has_avx2();

}  // namespace regweave
