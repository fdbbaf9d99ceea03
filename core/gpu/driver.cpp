// The queue on a real GPU, through the CUDA driver; its functions are looked up in libcuda by name.
#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "queue.hpp"

// The kernels for all architectures of the build, put into this file by the assembler.
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".global regweave_fatbin\n"
    "regweave_fatbin:\n"
    ".incbin \"" REGWEAVE_FATBIN
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const unsigned char regweave_fatbin[];

namespace regweave::gpu {
namespace {

using Result = int;
using Address = unsigned long long;

constexpr Result kNoMemory = 2;
constexpr std::size_t kSmall = 32 * 1024;

struct Driver {
    Result (*init)(unsigned);
    Result (*count)(int*);
    Result (*device)(int*, int);
    Result (*device_name)(char*, int, int);
    Result (*device_memory)(std::size_t*, int);
    Result (*attribute)(int*, int, int);
    Result (*retain)(void**, int);
    Result (*set_current)(void*);
    Result (*load)(void**, const void*);
    Result (*function)(void**, void*, const char*);
    Result (*make_stream)(void**, unsigned);
    Result (*end_stream)(void*);
    Result (*wait)(void*);
    Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                     void**, void**);
    Result (*allocate)(Address*, std::size_t);
    Result (*release)(Address);
    Result (*allocate_host)(void**, std::size_t, unsigned);
    Result (*release_host)(void*);
    Result (*to_device)(Address, const void*, std::size_t, void*);
    Result (*to_host)(void*, Address, std::size_t, void*);
    Result (*within)(Address, Address, std::size_t, void*);
    Result (*set)(Address, unsigned char, std::size_t, void*);
    Result (*memory)(std::size_t*, std::size_t*);
    Result (*error)(Result, const char**);
    Result (*function_attribute)(void*, int, int);
    std::string missing;

    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            missing = "no NVIDIA driver (libcuda.so.1) is installed";
            return;
        }
        auto find = [&](auto& target, const char* name) {
            void* found = dlsym(library, name);
            if (!found && missing.empty()) missing = std::string("the NVIDIA driver is too old: no ") + name;
            std::memcpy(&target, &found, sizeof found);
        };
        find(init, "cuInit");
        find(count, "cuDeviceGetCount");
        find(device, "cuDeviceGet");
        find(device_name, "cuDeviceGetName");
        find(device_memory, "cuDeviceTotalMem_v2");
        find(attribute, "cuDeviceGetAttribute");
        find(retain, "cuDevicePrimaryCtxRetain");
        find(set_current, "cuCtxSetCurrent");
        find(load, "cuModuleLoadData");
        find(function, "cuModuleGetFunction");
        find(make_stream, "cuStreamCreate");
        find(end_stream, "cuStreamDestroy_v2");
        find(wait, "cuStreamSynchronize");
        find(launch, "cuLaunchKernel");
        find(allocate, "cuMemAlloc_v2");
        find(release, "cuMemFree_v2");
        find(allocate_host, "cuMemHostAlloc");
        find(release_host, "cuMemFreeHost");
        find(to_device, "cuMemcpyHtoDAsync_v2");
        find(to_host, "cuMemcpyDtoHAsync_v2");
        find(within, "cuMemcpyDtoDAsync_v2");
        find(set, "cuMemsetD8Async");
        find(memory, "cuMemGetInfo_v2");
        find(error, "cuGetErrorString");
        find(function_attribute, "cuFuncSetAttribute");
        if (missing.empty() && init(0) != 0) missing = "the NVIDIA driver finds no GPU that it can use";
    }
};

Driver& driver() {
    static Driver d;
    return d;
}

void check(Result r, const char* what) {
    if (r == 0) return;
    const char* text = "unknown error";
    driver().error(r, &text);
    const std::string message = std::string(what) + ": " + text;
    if (r == kNoMemory) throw OutOfMemory(message);
    throw std::runtime_error("the GPU reports an error in " + message);
}

}  // namespace

struct Module {
    void* context = nullptr;
    void* module = nullptr;
    int device = 0;
};

namespace {

// Loaded once for each GPU and kept: contexts are slow to make.
std::shared_ptr<Module> module_of(int ordinal) {
    static std::mutex lock;
    static std::map<int, std::shared_ptr<Module>> known;
    std::lock_guard<std::mutex> guard(lock);
    auto& found = known[ordinal];
    if (found) return found;
    Driver& d = driver();
    if (!d.missing.empty()) throw std::runtime_error(d.missing);
    auto made = std::make_shared<Module>();
    check(d.device(&made->device, ordinal), "choosing the GPU");
    check(d.retain(&made->context, made->device), "starting the GPU");
    check(d.set_current(made->context), "entering the GPU");
    check(d.load(&made->module, regweave_fatbin), "loading the kernels");
    return found = made;
}

Address address(const void* p) { return reinterpret_cast<Address>(p); }

}  // namespace

std::vector<DeviceInfo> devices(std::string* why) {
    Driver& d = driver();
    std::vector<DeviceInfo> out;
    int n = 0;
    if (!d.missing.empty() || d.count(&n) != 0) {
        if (why) *why = d.missing.empty() ? "the NVIDIA driver lists no GPU" : d.missing;
        return out;
    }
    for (int i = 0; i < n; ++i) {
        int device = 0;
        char name[128] = {};
        DeviceInfo info{};
        check(d.device(&device, i), "choosing a GPU");
        check(d.device_name(name, sizeof name - 1, device), "naming a GPU");
        check(d.device_memory(&info.memory, device), "asking for the memory of a GPU");
        check(d.attribute(&info.capability[0], 75, device), "asking for the architecture of a GPU");
        check(d.attribute(&info.capability[1], 76, device), "asking for the architecture of a GPU");
        info.name = name;
        out.push_back(info);
    }
    if (out.empty() && why) *why = "the NVIDIA driver lists no GPU";
    return out;
}

Queue::Queue(int ordinal) : ordinal_(ordinal), module_(module_of(ordinal)) {
    enter();
    check(driver().make_stream(&stream_, 1), "making a queue");  // 1: not ordered with other queues
}

Queue::~Queue() {
    if (driver().set_current(module_->context) != 0) return;
    driver().wait(stream_);
    for (auto& f : free_) driver().release(address(f.second));
    for (auto& f : pinned_free_) driver().release_host(f.second);
    driver().end_stream(stream_);
}

std::string Queue::name() const { return devices().at(std::size_t(ordinal_)).name; }

std::pair<std::size_t, std::size_t> Queue::memory() {
    enter();
    std::size_t free = 0, total = 0;
    check(driver().memory(&free, &total), "asking for memory");
    for (auto& f : free_) free += f.first;
    return {free, total};
}

void Queue::enter() { check(driver().set_current(module_->context), "entering the GPU"); }

void* Queue::take(std::size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    const std::size_t size = rounded(bytes);
    auto found = free_.find(size);
    if (found != free_.end()) {
        void* memory = found->second;
        free_.erase(found);
        return memory;
    }
    enter();
    Address made = 0;
    Result r = driver().allocate(&made, size);
    if (r == kNoMemory) {
        trim();
        r = driver().allocate(&made, size);
    }
    check(r, "asking for memory");
    void* memory = reinterpret_cast<void*>(made);
    sizes_[memory] = size;
    return memory;
}

// Work that uses the memory is before all work that will be queued, so that it may be given out at once.
void Queue::give(void* memory) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    free_.emplace(sizes_.at(memory), memory);
}

void Queue::trim() {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    enter();
    wait();
    for (auto& f : free_) {
        driver().release(address(f.second));
        sizes_.erase(f.second);
    }
    free_.clear();
}

void* Queue::take_pinned(std::size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    const std::size_t size = rounded(bytes);
    auto found = pinned_free_.find(size);
    if (found != pinned_free_.end()) {
        void* memory = found->second;
        pinned_free_.erase(found);
        return memory;
    }
    enter();
    void* memory = nullptr;
    check(driver().allocate_host(&memory, size, 0), "asking for memory of the host");
    pinned_sizes_[memory] = size;
    return memory;
}

void Queue::give_pinned(void* memory) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    pinned_free_.emplace(pinned_sizes_.at(memory), memory);
}

void Queue::upload(void* to, const void* from, std::size_t bytes) {
    enter();
    if (bytes <= kSmall) {  // the driver takes a copy of small memory, unless it is pinned
        unsigned char copy[kSmall];
        std::memcpy(copy, from, bytes);
        check(driver().to_device(address(to), copy, bytes, stream_), "copying to the GPU");
        return;
    }
    check(driver().to_device(address(to), from, bytes, stream_), "copying to the GPU");
    wait();
}

void Queue::download(void* to, const void* from, std::size_t bytes) {
    enter();
    check(driver().to_host(to, address(from), bytes, stream_), "copying from the GPU");
    wait();
}

void Queue::copy(void* to, const void* from, std::size_t bytes) {
    enter();
    check(driver().within(address(to), address(from), bytes, stream_), "copying on the GPU");
}

void Queue::fill(void* memory, unsigned char value, std::size_t bytes) {
    enter();
    check(driver().set(address(memory), value, bytes, stream_), "filling memory");
}

void Queue::wait() { check(driver().wait(stream_), "waiting for the GPU"); }

void Queue::launch_named(const char* name, Index blocks, int threads, void** arguments, std::size_t shared) {
    enter();
    void*& function = functions_[name];
    if (!function) {
        check(driver().function(&function, module_->module, name), name);
        if (shared > 48 * 1024) check(driver().function_attribute(function, 8, int(shared)), name);
    }
    check(driver().launch(function, unsigned(blocks), 1, 1, unsigned(threads), 1, 1, unsigned(shared),
                          stream_, arguments, nullptr),
          name);
}

}  // namespace regweave::gpu
