// Closes and reuses descriptors in every way while its threads wait for a lock. Checks that its files contain
// only what the program wrote.
#define _GNU_SOURCE
#include "planted.h"
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
static pthread_mutex_t busy_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int is_over;
static const char *const text = "what the program wrote, and nothing else\n";

static void *worker(void *unused) {
    while (!is_over) {
        pthread_mutex_lock(&busy_mutex);
        work_us(100);
        pthread_mutex_unlock(&busy_mutex);
    }
    return NULL;
}

// Opens a file at the lowest free descriptor, writes while other threads wait, and compares the file's
// content.
static int is_untouched(int minimum) {
    char name[] = "descriptors-XXXXXX", found[200] = "";
    int made = mkstemp(name), file = fcntl(made, F_DUPFD, minimum);
    close(made);
    for (int i = 0; i < 3; i++) {
        if (write(file, text, strlen(text)) != (ssize_t)strlen(text))
            return 0;
        work_us(15000);
    }
    ssize_t size = pread(file, found, sizeof found, 0);
    close(file);
    unlink(name);
    char expected[200] = "";
    for (int i = 0; i < 3; i++)
        strcat(expected, text);
    return size == (ssize_t)strlen(expected) && strcmp(found, expected) == 0;
}

static int count_descriptors(void) {
    int count = 0;
    for (int file = 0; file < 256; file++)
        count += fcntl(file, F_GETFD) != -1;
    return count;
}

int main(int count, char **arguments) {
    pthread_t threads[3];
    if (count > 1)
        return 0; // the program that `exec` below starts
    int descriptors = count_descriptors();
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, worker, NULL);
    work_us(10000);
    int well = descriptors == count_descriptors();
    closefrom(3);
    well &= is_untouched(0);
    close_range(3, ~0U, 0);
    well &= is_untouched(3) && is_untouched(7);
    for (int file = 3; file < 40; file++)
        dup2(1, file);
    well &= is_untouched(0);
    pid_t child = fork();
    if (child == 0) {
        closefrom(3);
        run_one(1, (thread_function)is_untouched);
        if (daemon(1, 1) != 0)
            _exit(1);
        _exit(is_untouched(0) ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    well &= status == 0;
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", arguments[0], "again", NULL);
        _exit(1);
    }
    waitpid(child, &status, 0);
    well &= status == 0;
    is_over = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    return well ? 0 : 1;
}
