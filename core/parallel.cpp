#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace regweave {

namespace {
std::atomic<int> n_threads{1};
}

int threads() { return n_threads.load(); }

int set_threads(int n) {
    if (n < 1) throw std::invalid_argument("the number of threads must be at least 1");
    return n_threads.exchange(n);
}

void parallel_for(int n, const std::function<void(int)>& task) {
    const int workers = std::min(threads(), n);
    if (workers <= 1) {
        for (int i = 0; i < n; ++i) task(i);
        return;
    }
    std::atomic<int> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    auto work = [&] {
        try {
            for (int i = next++; i < n; i = next++) task(i);
        } catch (...) {
            std::lock_guard<std::mutex> lock(failure_mutex);
            failure = std::current_exception();
            next = n;
        }
    };
    std::vector<std::thread> crew;
    for (int t = 1; t < workers; ++t) crew.emplace_back(work);
    work();
    for (auto& member : crew) member.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace regweave
