// Threads over independent tasks. A task writes its own part of the output and reads only inputs,
// so the result cannot depend on how many threads there are or on which of them ran a task.
#pragma once

#include <functional>

namespace regweave {

// Number of threads that parallel_for uses when the present thread calls it; 1 in a new thread.
int threads();
int set_threads(int n);

// Calls task(i) once for each i in [0, n). Exceptions of a task are rethrown in the caller.
void parallel_for(int n, const std::function<void(int)>& task);

}  // namespace regweave
