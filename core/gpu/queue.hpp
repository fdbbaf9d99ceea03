// A queue of work on one GPU: memory, copies and launches, in the order in which they are asked for.
//
// The driver's library is opened when the first queue is made, so that the module loads where there is none.
// The twin of the tests has the same interface; its memory is the host's, and a launch is a loop.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "body.hpp"

namespace regweave::gpu {

// The GPU has not the memory that was asked for.
struct OutOfMemory : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct DeviceInfo {
    std::string name;
    std::size_t memory;
    int capability[2];
};

// GPUs that the driver shows; empty without a driver or without a GPU. `why` says what is missing.
std::vector<DeviceInfo> devices(std::string* why = nullptr);

struct Module;  // kernels loaded on one GPU

class Queue : public std::enable_shared_from_this<Queue> {
  public:
    explicit Queue(int ordinal);
    ~Queue();
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    int ordinal() const { return ordinal_; }
    std::string name() const;
    // Bytes free on the GPU, what this queue keeps for later included, and bytes that it has in all.
    std::pair<std::size_t, std::size_t> memory();

    // Memory is kept after use and given out again for sizes alike.
    void* take(std::size_t bytes);
    void give(void* memory);
    void trim();

    // Memory of the host that the GPU copies to without a detour.
    void* take_pinned(std::size_t bytes);
    void give_pinned(void* memory);

    void upload(void* to, const void* from, std::size_t bytes);    // `from` may change afterwards
    void download(void* to, const void* from, std::size_t bytes);  // waits
    void copy(void* to, const void* from, std::size_t bytes);
    void fill(void* memory, unsigned char value, std::size_t bytes);
    void clear(void* memory, std::size_t bytes) { fill(memory, 0, bytes); }
    void wait();

    // Makes the GPU the one that calls of this thread mean.
    void enter();

#if !defined(REGWEAVE_TWIN)
    void launch_named(const char* name, Index blocks, int threads, void** arguments, std::size_t shared = 0);
#endif

    template <class Body>
    void launch(const Body& body, Index n) {
        if (n <= 0) return;
#if defined(REGWEAVE_TWIN)
        for (Index v = 0; v < n; ++v) body(v);
#else
        Body argument = body;
        void* arguments[] = {&argument, &n};
        launch_named(KernelName<Body>::value, (n + 255) / 256, 256, arguments);
#endif
    }

  private:
    int ordinal_;
    std::shared_ptr<Module> module_;
    void* stream_ = nullptr;
    std::recursive_mutex lock_;  // of the lists of memory: arrays may end in another thread
    std::unordered_map<void*, std::size_t> sizes_, pinned_sizes_;
    std::multimap<std::size_t, void*> free_, pinned_free_;
    std::unordered_map<const char*, void*> functions_;
};

// Sizes are rounded up, so that arrays of nearly one size use each other's memory.
inline std::size_t rounded(std::size_t bytes) {
    std::size_t step = 512;
    while (step * 16 < bytes) step *= 2;
    return (bytes + step - 1) / step * step + (bytes == 0 ? step : 0);
}

}  // namespace regweave::gpu
