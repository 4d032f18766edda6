// Small programs with one bottleneck each: `scenes SCENE`.
//
// `barrier`: four threads in phases, one is slow. `pipes`: a request and its reply through two pipes, with
// work at one end. `event`: three threads wait for events of a thread that works. `queue`: a queue of two
// places between a fast producer and a slow consumer. `pool`: six threads share two connections. `sharing`:
// threads count in neighboring words. `connect`: connections to a listener with a full queue. `server`: one
// thread serves four clients by epoll. `disk`: threads sync a file under a mutex.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 6, PLACES = 2, CONNECTIONS = 2 };

static void sleep_us(long us) {
    struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

static void must(int is_done) {
    if (!is_done) abort();
}

static pthread_barrier_t phase;
static void *in_phases(void *index) {
    for (int i = 0; i < 100; i++) {
        sleep_us(index ? 200 : 6000);
        pthread_barrier_wait(&phase);
    }
    return NULL;
}

static int to_worker[2], to_asker[2];
static void *answer(void *unused) {
    char byte;
    while (read(to_worker[0], &byte, 1) == 1 && byte) {
        sleep_us(3000);
        must(write(to_asker[1], &byte, 1) == 1);
    }
    return unused;
}
static void *ask(void *unused) {
    char byte = 1;
    for (int i = 0; i < 200; i++)
        must(write(to_worker[1], &byte, 1) == 1 && read(to_asker[0], &byte, 1) == 1);
    byte = 0;
    must(write(to_worker[1], &byte, 1) == 1);
    return unused;
}

static int event;
static void *raise_events(void *unused) {
    for (int i = 0; i < 240; i++) {
        sleep_us(3000);
        must(eventfd_write(event, 1) == 0);
    }
    return unused;
}
static void *await_events(void *unused) {
    eventfd_t value;
    for (int i = 0; i < 80; i++) must(eventfd_read(event, &value) == 0);
    return unused;
}

static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_item = PTHREAD_COND_INITIALIZER, has_place = PTHREAD_COND_INITIALIZER;
static int items;
static void *produce(void *unused) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&queue_mutex);
        while (items == PLACES) pthread_cond_wait(&has_place, &queue_mutex);
        items++;
        pthread_cond_signal(&has_item);
        pthread_mutex_unlock(&queue_mutex);
    }
    return unused;
}
static void *consume(void *unused) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&queue_mutex);
        while (items == 0) pthread_cond_wait(&has_item, &queue_mutex);
        items--;
        pthread_cond_signal(&has_place);
        pthread_mutex_unlock(&queue_mutex);
        sleep_us(2000);
    }
    return unused;
}

static sem_t connections;
static void *use_connections(void *unused) {
    for (int i = 0; i < 80; i++) {
        sem_wait(&connections);
        sleep_us(3000);
        sem_post(&connections);
        sleep_us(200);
    }
    return unused;
}

static volatile long words[MOST_THREADS];
static void *count(void *index) {
    for (long i = 0; i < 600000000; i++) words[(intptr_t)index]++;
    return NULL;
}

static pthread_mutex_t file_mutex = PTHREAD_MUTEX_INITIALIZER;
static int file;
static void *write_records(void *unused) {
    for (int i = 0; i < 60; i++) {
        pthread_mutex_lock(&file_mutex);
        must(pwrite(file, "record", 6, 0) == 6 && fsync(file) == 0);
        sleep_us(1000); // also where a sync takes no time
        pthread_mutex_unlock(&file_mutex);
    }
    return unused;
}

static struct sockaddr_in address = {.sin_family = AF_INET};
static int listen_at_loopback(int places) {
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, places) == 0);
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    return listener;
}
static int connected(void) {
    int one = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(one, (struct sockaddr *)&address, sizeof address) == 0);
    return one;
}

static int listener;
// The kernel repeats a request that finds the queue full after a second.
static void *accept_slowly(void *unused) {
    for (int i = 0; i < 5; i++) {
        sleep_us(700000);
        close(accept(listener, NULL, NULL));
    }
    return unused;
}
static void *open_connections(void *unused) {
    for (int i = 0; i < 5; i++) close(connected());
    return unused;
}

enum { CLIENTS = 4, REQUESTS = 60 };
static void *serve(void *unused) {
    int poll = epoll_create1(0), open = CLIENTS;
    for (int i = 0; i < CLIENTS; i++) {
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = accept(listener, NULL, NULL)};
        must(epoll_ctl(poll, EPOLL_CTL_ADD, interest.data.fd, &interest) == 0);
    }
    while (open > 0) {
        struct epoll_event ready[CLIENTS];
        int n = epoll_wait(poll, ready, CLIENTS, -1);
        for (int i = 0; i < n; i++) {
            char byte;
            if (recv(ready[i].data.fd, &byte, 1, 0) == 1) {
                sleep_us(3000); // a request to another server
                must(send(ready[i].data.fd, &byte, 1, 0) == 1);
            } else {
                close(ready[i].data.fd);
                open--;
            }
        }
    }
    return unused;
}
static void *client(void *unused) {
    int one = connected();
    char byte = 1;
    for (int i = 0; i < REQUESTS; i++) must(send(one, &byte, 1, 0) == 1 && recv(one, &byte, 1, 0) == 1);
    close(one);
    return unused;
}

static pthread_t threads[MOST_THREADS];
static int started;
static void start(void *(*function)(void *), int number) {
    for (int i = 0; i < number; i++, started++)
        must(pthread_create(&threads[started], NULL, function, (void *)(intptr_t)started) == 0);
}

int main(int count_of_arguments, char **arguments) {
    const char *scene = count_of_arguments > 1 ? arguments[1] : "";
    char name[] = "scenes-XXXXXX";
    if (!strcmp(scene, "barrier")) {
        pthread_barrier_init(&phase, NULL, 4);
        start(in_phases, 4);
    } else if (!strcmp(scene, "pipes")) {
        must(pipe(to_worker) == 0 && pipe(to_asker) == 0);
        start(answer, 1);
        start(ask, 1);
    } else if (!strcmp(scene, "event")) {
        event = eventfd(0, EFD_SEMAPHORE);
        start(raise_events, 1);
        start(await_events, 3);
    } else if (!strcmp(scene, "queue")) {
        start(consume, 1);
        start(produce, 1);
    } else if (!strcmp(scene, "pool")) {
        sem_init(&connections, 0, CONNECTIONS);
        start(use_connections, 6);
    } else if (!strcmp(scene, "sharing")) {
        start(count, 2);
    } else if (!strcmp(scene, "connect")) {
        listener = listen_at_loopback(0);
        start(accept_slowly, 1);
        start(open_connections, 1);
    } else if (!strcmp(scene, "server")) {
        listener = listen_at_loopback(CLIENTS);
        start(serve, 1);
        start(client, CLIENTS);
    } else if (!strcmp(scene, "disk")) {
        file = mkstemp(name);
        unlink(name);
        start(write_records, 4);
    } else {
        return 2;
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return 0;
}
