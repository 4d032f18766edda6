// Small programs with one bottleneck each: `mixed SCENE`.
//
// `inherit`, `robust`, `recursive`, `shared`: six threads under one mutex of this sort. `nested`: a long hold
// of an outer mutex around an inner one. `stripe`: all keys hash to one of 64 mutexes. `short`: holds of a
// few microseconds of work. `timed`: threads try a mutex with a timeout, again and again. `token`: one byte
// in a pipe as a lock. `flock`, `sysv`: a lock of a file, a System V semaphore as a lock. `stream`: a locked
// stream of the C library. `batch`: a dispatcher sleeps for each job of four idle threads. `compute`: threads
// compute, and count under a mutex at times. `udp`: requests to a slow server. `child`: threads read the
// output of slow processes. `signals`: a thread waits for signals. `dsync`: writes to a file opened with
// O_DSYNC.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 6, STRIPES = 64 };

static void sleep_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void must(int is_done) {
    if (!is_done) abort();
}

static volatile unsigned long sink;
static void compute(long steps) {
    unsigned long x = 1;
    for (long i = 0; i < steps; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
    sink = x;
}

static pthread_mutex_t mutex, *shared = &mutex;
static void *under_mutex(void *unused) {
    for (int i = 0; i < 60; i++) {
        must(pthread_mutex_lock(shared) == 0);
        sleep_us(1500);
        must(pthread_mutex_unlock(shared) == 0);
        sleep_us(300);
    }
    return unused;
}

static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
static void *nested(void *index) {
    for (int i = 0; i < 60; i++) {
        if (index) {
            pthread_mutex_lock(&outer);
            sleep_us(1200);
            pthread_mutex_lock(&inner);
            sleep_us(200);
            pthread_mutex_unlock(&inner);
            pthread_mutex_unlock(&outer);
        } else {
            sleep_us(1500);
            pthread_mutex_lock(&inner);
            pthread_mutex_unlock(&inner);
        }
    }
    return NULL;
}

static pthread_mutex_t stripes[STRIPES];
static void *striped(void *index) {
    for (uintptr_t i = 0; i < 60; i++) {
        pthread_mutex_t *one = &stripes[((uintptr_t)index + i * MOST_THREADS) * STRIPES % STRIPES];
        pthread_mutex_lock(one);
        sleep_us(1500);
        pthread_mutex_unlock(one);
    }
    return NULL;
}

static pthread_mutex_t timed = PTHREAD_MUTEX_INITIALIZER;
static void *with_timeout(void *unused) {
    for (int i = 0; i < 50; i++) {
        for (;;) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 2000000;
            if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
            if (pthread_mutex_timedlock(&timed, &until) == 0) break;
        }
        sleep_us(1500);
        pthread_mutex_unlock(&timed);
        sleep_us(100);
    }
    return unused;
}

static int token[2];
static void *with_token(void *unused) {
    char byte;
    for (int i = 0; i < 60; i++) {
        must(read(token[0], &byte, 1) == 1);
        sleep_us(1500);
        must(write(token[1], &byte, 1) == 1);
        sleep_us(300);
    }
    return unused;
}

static char path[] = "mixed-XXXXXX";
static void *with_flock(void *unused) {
    int file = open(path, O_RDWR);
    for (int i = 0; i < 60; i++) {
        must(flock(file, LOCK_EX) == 0);
        sleep_us(1500);
        must(flock(file, LOCK_UN) == 0);
        sleep_us(300);
    }
    close(file);
    return unused;
}

static int semaphores;
static void change(int by) {
    struct sembuf one = {0, (short)by, 0};
    must(semop(semaphores, &one, 1) == 0);
}
static void *with_sysv(void *unused) {
    for (int i = 0; i < 60; i++) {
        change(-1);
        sleep_us(1500);
        change(1);
        sleep_us(300);
    }
    return unused;
}

static FILE *stream;
static void *with_stream(void *unused) {
    for (int i = 0; i < 60; i++) {
        flockfile(stream);
        fputs("a line\n", stream);
        sleep_us(1500);
        funlockfile(stream);
        sleep_us(300);
    }
    return unused;
}

static pthread_mutex_t jobs_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_job = PTHREAD_COND_INITIALIZER;
static int jobs, is_over;
static void *work(void *unused) {
    for (;;) {
        pthread_mutex_lock(&jobs_mutex);
        while (!jobs && !is_over) pthread_cond_wait(&has_job, &jobs_mutex);
        int has = jobs > 0;
        jobs -= has;
        pthread_mutex_unlock(&jobs_mutex);
        if (!has) return unused;
        sleep_us(1000);
    }
}
static void *dispatch(void *unused) {
    for (int i = 0; i < 150; i++) {
        sleep_us(4000);
        pthread_mutex_lock(&jobs_mutex);
        jobs++;
        pthread_mutex_unlock(&jobs_mutex);
        pthread_cond_signal(&has_job);
    }
    pthread_mutex_lock(&jobs_mutex);
    is_over = 1;
    pthread_mutex_unlock(&jobs_mutex);
    pthread_cond_broadcast(&has_job);
    return unused;
}

static pthread_mutex_t count_mutex = PTHREAD_MUTEX_INITIALIZER;
static long counted;
static void *computing(void *unused) {
    for (int i = 0; i < 1000; i++) {
        compute(300000);
        pthread_mutex_lock(&count_mutex);
        counted++;
        pthread_mutex_unlock(&count_mutex);
    }
    return unused;
}

static pthread_mutex_t short_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *with_short_holds(void *unused) {
    for (int i = 0; i < 100000; i++) {
        pthread_mutex_lock(&short_mutex);
        compute(4000);
        pthread_mutex_unlock(&short_mutex);
        compute(200);
    }
    return unused;
}

static struct sockaddr_in address = {.sin_family = AF_INET};
static int server;
static void *answer(void *unused) {
    for (int i = 0; i < 240; i++) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        char byte;
        must(recvfrom(server, &byte, 1, 0, (struct sockaddr *)&from, &len) == 1);
        sleep_us(2500);
        must(sendto(server, &byte, 1, 0, (struct sockaddr *)&from, len) == 1);
    }
    return unused;
}
static void *ask(void *unused) {
    int one = socket(AF_INET, SOCK_DGRAM, 0);
    char byte = 1;
    for (int i = 0; i < 80; i++) {
        must(sendto(one, &byte, 1, 0, (struct sockaddr *)&address, sizeof address) == 1);
        must(recvfrom(one, &byte, 1, 0, NULL, NULL) == 1);
    }
    close(one);
    return unused;
}

static void *read_child(void *unused) {
    char line[64];
    for (int i = 0; i < 3; i++) {
        FILE *output = popen("sleep 0.2; echo done", "r");
        must(output && fgets(line, sizeof line, output) != NULL);
        pclose(output);
    }
    return unused;
}

static sigset_t awaited;
static void *await_signals(void *unused) {
    int signal;
    for (int i = 0; i < 60; i++) must(sigwait(&awaited, &signal) == 0);
    return unused;
}
static void *raise_signals(void *unused) {
    for (int i = 0; i < 65; i++) {
        sleep_us(10000);
        kill(getpid(), SIGUSR1);
    }
    return unused;
}

static int synced;
static void *write_synced(void *unused) {
    static char block[4096];
    for (int i = 0; i < 400; i++) must(pwrite(synced, block, sizeof block, 4096L * i) == sizeof block);
    return unused;
}

static pthread_t threads[MOST_THREADS];
static int started;
static void start(void *(*function)(void *), int number) {
    for (int i = 0; i < number; i++, started++)
        must(pthread_create(&threads[started], NULL, function, (void *)(intptr_t)started) == 0);
}

static void start_under_mutex(int type, int protocol, int is_robust, int is_shared) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, type);
    pthread_mutexattr_setprotocol(&kind, protocol);
    if (is_robust) pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    if (is_shared) {
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    }
    must(pthread_mutex_init(shared, &kind) == 0);
    start(under_mutex, 6);
}

int main(int count, char **arguments) {
    const char *scene = count > 1 ? arguments[1] : "";
    if (!strcmp(scene, "inherit")) {
        start_under_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 0);
    } else if (!strcmp(scene, "robust")) {
        start_under_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 0);
    } else if (!strcmp(scene, "recursive")) {
        start_under_mutex(PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, 0, 0);
    } else if (!strcmp(scene, "shared")) {
        start_under_mutex(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, 0, 1);
    } else if (!strcmp(scene, "nested")) {
        start(nested, 5);
    } else if (!strcmp(scene, "stripe")) {
        for (int i = 0; i < STRIPES; i++) pthread_mutex_init(&stripes[i], NULL);
        start(striped, 6);
    } else if (!strcmp(scene, "timed")) {
        start(with_timeout, 5);
    } else if (!strcmp(scene, "token")) {
        char byte = 1;
        must(pipe(token) == 0 && write(token[1], &byte, 1) == 1);
        start(with_token, 6);
    } else if (!strcmp(scene, "flock")) {
        close(mkstemp(path));
        start(with_flock, 6);
    } else if (!strcmp(scene, "sysv")) {
        semaphores = semget(IPC_PRIVATE, 1, 0600);
        must(semaphores >= 0);
        change(1);
        start(with_sysv, 6);
    } else if (!strcmp(scene, "stream")) {
        stream = fopen("/dev/null", "w");
        start(with_stream, 6);
    } else if (!strcmp(scene, "batch")) {
        start(dispatch, 1);
        start(work, 4);
    } else if (!strcmp(scene, "compute")) {
        start(computing, 4);
    } else if (!strcmp(scene, "short")) {
        start(with_short_holds, 4);
    } else if (!strcmp(scene, "udp")) {
        socklen_t len = sizeof address;
        server = socket(AF_INET, SOCK_DGRAM, 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        must(bind(server, (struct sockaddr *)&address, len) == 0);
        must(getsockname(server, (struct sockaddr *)&address, &len) == 0);
        start(answer, 1);
        start(ask, 3);
    } else if (!strcmp(scene, "child")) {
        start(read_child, 3);
    } else if (!strcmp(scene, "signals")) {
        sigemptyset(&awaited);
        sigaddset(&awaited, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &awaited, NULL);
        start(raise_signals, 1);
        start(await_signals, 1);
    } else if (!strcmp(scene, "dsync")) {
        close(mkstemp(path));
        synced = open(path, O_WRONLY | O_DSYNC);
        start(write_synced, 2);
    } else {
        return 2;
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (semaphores) semctl(semaphores, 0, IPC_RMID);
    unlink(path);
    return 0;
}
