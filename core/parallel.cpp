#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace regweave {

namespace {

// Of the calling thread: two registrations at once, in two threads of Python, keep their own numbers.
thread_local int n_threads = 1;

// One call of parallel_for. A helper that wakes late finds no task left and never touches ``task``, which
// lives only as long as the call.
struct Job {
    Job(int n, int helpers, const std::function<void(int)>& task) : n(n), places(helpers), task(task) {}

    // Takes tasks until none is left.
    void work() {
        int taken = 0;
        for (int i = next++; i < n; i = next++, ++taken) {
            try {
                if (!failed) task(i);
            } catch (...) {
                std::lock_guard<std::mutex> lock(mutex);
                if (!failed.exchange(true)) failure = std::current_exception();
            }
        }
        if (taken && (done += taken) == n) {
            std::lock_guard<std::mutex> lock(mutex);
            finished.notify_all();
        }
    }

    void wait() {
        // Helpers mostly end within microseconds of each other; sleeping and waking would cost more.
        for (int spin = 0; spin < 2000 && done < n; ++spin) std::this_thread::yield();
        std::unique_lock<std::mutex> lock(mutex);
        finished.wait(lock, [&] { return done == n; });
    }

    const int n;
    std::atomic<int> places, next{0}, done{0};
    const std::function<void(int)>& task;
    std::atomic<bool> failed{false};
    std::exception_ptr failure;
    std::mutex mutex;
    std::condition_variable finished;
};

// Threads that wait for jobs. They are started once and never joined: starting threads for every call costs
// more than many calls, and on a busy machine a call would wait until each of them had its turn, work or no
// work.
class Crew {
  public:
    void post(const std::shared_ptr<Job>& job, int helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            grow(helpers);
            jobs_.push_back(job);
        }
        for (int i = 0; i < helpers; ++i) wake_.notify_one();
    }

    void remove(const std::shared_ptr<Job>& job) {
        std::lock_guard<std::mutex> lock(mutex_);
        jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
    }

  private:
    // Where the system has no room for another thread, fewer do the work: the caller alone could.
    void grow(int helpers) {
        try {
            for (; size_ < helpers; ++size_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
        }
    }

    std::shared_ptr<Job> take() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            for (auto& job : jobs_)
                if (job->next < job->n && job->places-- > 0) return job;
            wake_.wait(lock);
        }
    }

    void serve() {
        while (true) take()->work();
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Job>> jobs_;
    int size_ = 0;
};

// Never destroyed: its threads outlive static destructors.
std::atomic<Crew*> the_crew{nullptr};

#if !defined(_WIN32)
// The threads of a crew do not survive a fork; the child starts its own.
void forget_crew() { the_crew = nullptr; }
#endif

Crew& crew() {
    static std::mutex mutex;
    if (Crew* found = the_crew) return *found;
    std::lock_guard<std::mutex> lock(mutex);
    if (!the_crew) {
#if !defined(_WIN32)
        static const int registered = pthread_atfork(nullptr, nullptr, forget_crew);
        (void)registered;
#endif
        the_crew = new Crew;
    }
    return *the_crew;
}

}  // namespace

int threads() { return n_threads; }

int set_threads(int n) {
    if (n < 1) throw std::invalid_argument("the number of threads must be at least 1");
    return std::exchange(n_threads, n);
}

void parallel_for(int n, const std::function<void(int)>& task) {
    const int workers = std::min(threads(), n);
    if (workers <= 1) {
        for (int i = 0; i < n; ++i) task(i);
        return;
    }
    auto job = std::make_shared<Job>(n, workers - 1, task);
    crew().post(job, workers - 1);
    job->work();
    job->wait();
    crew().remove(job);
    if (job->failure) std::rethrow_exception(job->failure);
}

}  // namespace regweave
