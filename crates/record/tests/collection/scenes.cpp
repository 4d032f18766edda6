// Small programs with one bottleneck each: `scenes SCENE`.
//
// `writer`: readers with overlapping holds keep a writer waiting. `once`: threads wait for the slow first
// call of a function. `future`: one thread waits for the results of others. `registry`: a map under a mutex,
// with a slow lookup. `strand`: jobs that one thread executes in turn.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <pthread.h>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

static void sleep_us(long us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

static void named(const char *name) { pthread_setname_np(pthread_self(), name); }

struct Index {
    std::shared_mutex mutex;
    void read() {
        std::shared_lock<std::shared_mutex> held(mutex);
        sleep_us(2000);
    }
    void write() {
        std::unique_lock<std::shared_mutex> held(mutex);
        sleep_us(100);
    }
};

static void writer() {
    Index index;
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
        threads.emplace_back([&, i] {
            named("reader");
            sleep_us(700 * i);
            while (!is_over) index.read();
        });
    std::thread one([&] {
        named("writer");
        auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(800);
        for (int i = 0; i < 100 && std::chrono::steady_clock::now() < until; i++) {
            sleep_us(500);
            index.write();
        }
        is_over = true;
    });
    sleep_us(1000000);
    is_over = true;
    one.join();
    for (auto &thread : threads) thread.join();
}

static std::once_flag flag;
static void once() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([] {
            std::call_once(flag, [] { sleep_us(600000); });
            sleep_us(20000);
        });
    for (auto &thread : threads) thread.join();
}

static void future() {
    std::vector<std::future<int>> results;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 3; i++)
            results.push_back(std::async(std::launch::async, [i] { return sleep_us(5000 * (i + 1)), i; }));
        for (auto &result : results) result.get();
        results.clear();
    }
}

class Registry {
    std::mutex mutex;
    std::map<int, int> entries;

  public:
    int lookup(int key) {
        std::lock_guard<std::mutex> held(mutex);
        if (entries.find(key) == entries.end()) sleep_us(800); // loads the entry
        return entries[key % 4];
    }
};

static void registry() {
    Registry all;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&all, i] {
            for (int round = 0; round < 200; round++) all.lookup(1000 + round * 4 + i);
        });
    for (auto &thread : threads) thread.join();
}

class Strand {
    std::mutex mutex;
    std::condition_variable has_job;
    std::deque<std::function<void()>> jobs;
    bool is_over = false;
    std::thread thread{[this] { run(); }};

    void run() {
        for (;;) {
            std::unique_lock<std::mutex> held(mutex);
            has_job.wait(held, [this] { return is_over || !jobs.empty(); });
            if (jobs.empty()) return;
            auto job = std::move(jobs.front());
            jobs.pop_front();
            held.unlock();
            job();
        }
    }

  public:
    void call(std::function<void()> job) {
        std::promise<void> done;
        {
            std::lock_guard<std::mutex> held(mutex);
            jobs.push_back([&] { job(), done.set_value(); });
        }
        has_job.notify_one();
        done.get_future().get();
    }
    ~Strand() {
        {
            std::lock_guard<std::mutex> held(mutex);
            is_over = true;
        }
        has_job.notify_one();
        thread.join();
    }
};

static void strand() {
    Strand one;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&one] {
            for (int round = 0; round < 80; round++) one.call([] { sleep_us(2000); });
        });
    for (auto &thread : threads) thread.join();
}

int main(int count, char **arguments) {
    std::string scene = count > 1 ? arguments[1] : "";
    if (scene == "writer") writer();
    else if (scene == "once") once();
    else if (scene == "future") future();
    else if (scene == "registry") registry();
    else if (scene == "strand") strand();
    else return 2;
    return 0;
}
