// All kernels of the GPU, for nvcc: the bodies of the headers, a thread for each value.
#include "correlation.hpp"
#include "deform.hpp"
#include "descent.hpp"
#include "sampling.hpp"
#include "similarity.hpp"
#include "smooth.hpp"
#include "sums.hpp"
#include "weights.hpp"
