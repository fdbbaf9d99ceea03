// Memory of large arrays. Pages that the system hands out anew are cleared and mapped one by one, which costs
// as much as many a kernel and does not get faster with threads; so blocks that are given back wait for the
// next array of their size, as many as fit into a limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace regweave {

namespace memory {

constexpr std::size_t kSmall = std::size_t(1) << 18;    // below, the system's own allocator is as fast
constexpr std::size_t kGrain = std::size_t(1) << 16;    // sizes are rounded up to this
constexpr std::size_t kPage = std::size_t(1) << 21;     // of the large kind
constexpr std::size_t kLimit = std::size_t(256) << 20;  // bytes that may wait
constexpr std::size_t kLargest = kLimit / 2;            // of one block that waits
constexpr std::size_t kHead = 64;

// Stands before each block.
struct Head {
    void* start;       // of what was allocated
    std::size_t size;  // of the block, 0 for a small one
};

inline Head& head_of(void* block) { return *reinterpret_cast<Head*>(static_cast<char*>(block) - kHead); }

inline void* allocate(std::size_t size, std::size_t align) {
    void* start = std::malloc(size + kHead + align);
    if (!start) throw std::bad_alloc();
    const auto first = reinterpret_cast<std::uintptr_t>(start) + kHead;
    void* block = reinterpret_cast<void*>((first + align - 1) / align * align);
    head_of(block) = {start, 0};
    return block;
}

// Blocks that wait, the one given back last at the end. Nobody waits for its lock: who finds it taken, by
// another thread or by one that a fork has left behind, uses the system's allocator.
struct Pool {
    std::mutex mutex;
    std::deque<void*> blocks;
    std::size_t bytes = 0;

    void* find(std::size_t size) {
        for (auto at = blocks.rbegin(); at != blocks.rend(); ++at)
            if (head_of(*at).size == size) {
                void* block = *at;
                blocks.erase(std::next(at).base());
                bytes -= size;
                return block;
            }
        return nullptr;
    }

    void* drop_oldest() {
        void* block = blocks.front();
        blocks.pop_front();
        bytes -= head_of(block).size;
        return block;
    }
};

// Never destroyed: arrays may outlive static destructors.
inline Pool& pool() {
    static Pool* const the_pool = new Pool;
    return *the_pool;
}

}  // namespace memory

// Memory that is not cleared, aligned for vectors; throws std::bad_alloc where there is none.
inline void* take_memory(std::size_t bytes) {
    using namespace memory;
    if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
    if (bytes < kSmall) return allocate(bytes, kHead);
    const std::size_t size = (bytes + kGrain - 1) / kGrain * kGrain;
    {
        std::unique_lock<std::mutex> lock(pool().mutex, std::try_to_lock);
        if (void* found = lock ? pool().find(size) : nullptr) return found;
    }
    void* block = allocate(size, size >= 2 * kPage ? kPage : kHead);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (size >= 2 * kPage) madvise(block, size / kPage * kPage, MADV_HUGEPAGE);
#endif
    head_of(block).size = size;
    return block;
}

inline void give_memory_back(void* block) noexcept {
    using namespace memory;
    if (!block) return;
    const Head head = head_of(block);
    if (head.size == 0 || head.size > kLargest) return std::free(head.start);
    std::unique_lock<std::mutex> lock(pool().mutex, std::try_to_lock);
    if (!lock) return std::free(head.start);
    try {
        pool().blocks.push_back(block);
    } catch (...) {
        return std::free(head.start);
    }
    pool().bytes += head.size;
    while (pool().bytes > kLimit) std::free(head_of(pool().drop_oldest()).start);
}

struct GiveBack {
    void operator()(void* block) const noexcept { give_memory_back(block); }
};

// Values that are not initialised: scratch of a kernel.
template <typename T>
class Buffer {
    static_assert(std::is_trivial<T>::value, "values are not constructed");

  public:
    explicit Buffer(std::size_t n) : size_(n), data_(static_cast<T*>(take_memory(n * sizeof(T)))) {}

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }

  private:
    std::size_t size_;
    std::unique_ptr<T[], GiveBack> data_;
};

}  // namespace regweave
