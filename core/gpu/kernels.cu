// All kernels of the GPU, for nvcc: the bodies of the headers, a thread for each value.
#include "sampling.hpp"
