// The queue of the tests: the memory of the host in place of a GPU's. Memory that was not written holds NaN,
// so that a kernel that reads it is seen.
#include <cstdlib>
#include <cstring>
#include <new>

#include "queue.hpp"

namespace regweave::gpu {

struct Module {};

std::vector<DeviceInfo> devices(std::string*) { return {{"twin on the host", std::size_t(4) << 30, {0, 0}}}; }

Queue::Queue(int ordinal) : ordinal_(ordinal) {
    if (ordinal != 0) throw std::runtime_error("the twin is one device");
}

Queue::~Queue() { trim(); }

std::string Queue::name() const { return devices()[0].name; }

std::pair<std::size_t, std::size_t> Queue::memory() {
    std::size_t taken = 0;
    for (auto& s : sizes_) taken += s.second;
    for (auto& f : free_) taken -= f.first;
    return {devices()[0].memory - taken, devices()[0].memory};
}

void Queue::enter() {}

void* Queue::take(std::size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    const std::size_t size = rounded(bytes);
    if (size > memory().first) throw OutOfMemory("asking for memory: out of memory");
    void* made = std::malloc(size);
    if (!made) throw std::bad_alloc();
    std::memset(made, 0xff, size);
    sizes_[made] = size;
    return made;
}

void Queue::give(void* memory) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    sizes_.erase(memory);
    std::free(memory);
}

void Queue::trim() {}

void* Queue::take_pinned(std::size_t bytes) {
    void* made = std::malloc(bytes ? bytes : 1);
    if (!made) throw std::bad_alloc();
    return made;
}

void Queue::give_pinned(void* memory) { std::free(memory); }

void Queue::upload(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void Queue::download(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void Queue::copy(void* to, const void* from, std::size_t bytes) { std::memmove(to, from, bytes); }
void Queue::fill(void* memory, unsigned char value, std::size_t bytes) { std::memset(memory, value, bytes); }
void Queue::wait() {}

}  // namespace regweave::gpu
