// One primitive of C++ under one load: `primitives PRIMITIVE LOAD`; the loads are those of primitives.c.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

static std::string primitive, load;

static void sleep_us(long us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

struct AtomicLock {
    std::atomic<int> word{0};
    void lock() {
        while (word.exchange(1) != 0) word.wait(1);
    }
    void unlock() {
        word.store(0);
        word.notify_one();
    }
};

struct ConditionLock {
    std::mutex guard;
    std::condition_variable freed;
    bool is_taken = false;
    void lock() {
        std::unique_lock<std::mutex> held(guard);
        freed.wait(held, [&] { return !is_taken; });
        is_taken = true;
    }
    void unlock() {
        std::lock_guard<std::mutex> held(guard);
        is_taken = false;
        freed.notify_one();
    }
};

struct SemaphoreLock {
    std::counting_semaphore<4> semaphore{1};
    void lock() { semaphore.acquire(); }
    void unlock() { semaphore.release(); }
};

template <class Lock> static void work(Lock &lock) {
    for (int i = 0; i < 150; i++) {
        lock.lock();
        sleep_us(1000);
        lock.unlock();
        sleep_us(50);
    }
}

template <class Lock> static void run() {
    std::vector<Lock> locks(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&locks, i] { work(locks[load == "contended" ? 0 : i]); });
    for (auto &thread : threads) thread.join();
}

static void pool() {
    std::mutex guard;
    std::condition_variable filled;
    std::atomic<int> posted{0};
    int jobs = 0;
    bool is_over = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            int seen = 0;
            for (;;) {
                if (primitive == "atomic") {
                    posted.wait(seen);
                    seen = posted.load();
                    if (seen >= 50) return;
                    continue;
                }
                std::unique_lock<std::mutex> held(guard);
                filled.wait(held, [&] { return jobs > 0 || is_over; });
                if (jobs == 0) return;
                jobs--;
            }
        });
    for (int i = 0; i < 50; i++) {
        sleep_us(10000);
        posted.fetch_add(1);
        posted.notify_all();
        std::lock_guard<std::mutex> held(guard);
        jobs++;
        filled.notify_one();
    }
    {
        std::lock_guard<std::mutex> held(guard);
        is_over = true;
        filled.notify_all();
    }
    for (auto &thread : threads) thread.join();
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    primitive = arguments[1];
    load = arguments[2];
    if (load == "pool") pool();
    else if (primitive == "mutex") run<std::mutex>();
    else if (primitive == "shared_mutex") run<std::shared_mutex>();
    else if (primitive == "recursive_mutex") run<std::recursive_mutex>();
    else if (primitive == "timed_mutex") run<std::timed_mutex>();
    else if (primitive == "atomic") run<AtomicLock>();
    else if (primitive == "condition") run<ConditionLock>();
    else if (primitive == "semaphore") run<SemaphoreLock>();
    else return 2;
}
