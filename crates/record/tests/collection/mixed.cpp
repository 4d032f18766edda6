// Small programs with one bottleneck each: `mixed SCENE`.
//
// `latch`: threads wait for one slow thread at a latch. `phases`: the same at a `std::barrier`. `any`: a lock
// made of a `std::condition_variable_any`. `init`: threads wait for the first call of a function with a
// static object. `stop`: threads that wait until they are asked to stop. `critical`: an OpenMP critical
// section. `upgrade`: all threads write under a shared mutex. `flag`: one thread sets an atomic flag that the
// others wait for.
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

static void sleep_us(long us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

template <typename Function> static void in_threads(int count, Function function) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; i++) threads.emplace_back(function, i);
}

static void latch() {
    std::latch done(4);
    in_threads(4, [&](int index) {
        sleep_us(index ? 2000 : 500000);
        done.arrive_and_wait();
    });
}

static void phases() {
    std::barrier phase(4);
    in_threads(4, [&](int index) {
        for (int i = 0; i < 100; i++) {
            sleep_us(index ? 200 : 6000);
            phase.arrive_and_wait();
        }
    });
}

class AnyLock {
    std::mutex mutex;
    std::condition_variable_any is_free;
    bool is_held = false;

  public:
    void lock() {
        std::unique_lock<std::mutex> held(mutex);
        is_free.wait(held, [this] { return !is_held; });
        is_held = true;
    }
    void unlock() {
        {
            std::lock_guard<std::mutex> held(mutex);
            is_held = false;
        }
        is_free.notify_one();
    }
};
static void any() {
    AnyLock lock;
    in_threads(5, [&](int) {
        for (int i = 0; i < 80; i++) {
            lock.lock();
            sleep_us(1500);
            lock.unlock();
            sleep_us(300);
        }
    });
}

struct Slow {
    Slow() { sleep_us(600000); }
};
static void init() {
    in_threads(4, [](int) {
        static Slow once;
        sleep_us(20000);
    });
}

static void stop() {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&](std::stop_token token) {
            std::unique_lock<std::mutex> held(mutex);
            changed.wait(held, token, [] { return false; });
        });
    sleep_us(600000);
}

static void critical() {
#pragma omp parallel num_threads(4)
    for (int i = 0; i < 100; i++) {
#pragma omp critical
        sleep_us(1500);
        sleep_us(200);
    }
}

class Table {
    std::shared_mutex mutex;
    int rows = 0;

  public:
    void insert() {
        std::unique_lock<std::shared_mutex> held(mutex);
        sleep_us(1500);
        rows++;
    }
};
static void upgrade() {
    Table table;
    in_threads(5, [&](int) {
        for (int i = 0; i < 60; i++) table.insert();
    });
}

static void flag() {
    std::atomic<int> step{0};
    in_threads(4, [&](int index) {
        for (int i = 0; i < 100; i++) {
            if (index == 0) {
                sleep_us(5000);
                step = i + 1;
                step.notify_all();
            } else {
                for (int seen = step; seen <= i; seen = step) step.wait(seen);
            }
        }
    });
}

int main(int count, char **arguments) {
    std::string scene = count > 1 ? arguments[1] : "";
    if (scene == "latch") latch();
    else if (scene == "phases") phases();
    else if (scene == "any") any();
    else if (scene == "init") init();
    else if (scene == "stop") stop();
    else if (scene == "critical") critical();
    else if (scene == "upgrade") upgrade();
    else if (scene == "flag") flag();
    else return 2;
    return 0;
}
