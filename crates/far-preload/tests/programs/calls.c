/* System calls of every kind, with all their arguments in a block that is paged out before each call:
 * vectors, messages with names and control data, datagrams and events that can be read only once, names and
 * attributes of files, waits, futexes, arguments of programs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) return printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)), \
    1; } while (0)

enum { MB = 1 << 20 };
static unsigned char *far; /* 4 MiB for arguments */
static unsigned char *crowd; /* touched to page out `far` */

static void sweep(void)
{
    for (size_t i = 0; i < 6 * MB; i += 4096)
        crowd[i]++;
}

static void fill(unsigned char *at, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (unsigned char)((i + seed) * 2654435761u >> 11);
}

static int is(const unsigned char *at, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != (unsigned char)((i + seed) * 2654435761u >> 11)) return 0;
    return 1;
}

static int vectors(void)
{
    char name[] = "/tmp/azekura-calls-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0);
    unlink(name);
    struct iovec *v = (struct iovec *)(far + 3 * MB);
    fill(far, 2 * MB + 777, 1);
    for (int round = 0; round < 3; round++) {
        v[0] = (struct iovec){far, 100000};
        v[1] = (struct iovec){far + 100000, 0};
        v[2] = (struct iovec){far + 100000, 2 * MB + 777 - 100000};
        sweep();
        lseek(fd, 0, SEEK_SET);
        MUST((round == 0 ? writev(fd, v, 3) : round == 1 ? pwritev(fd, v, 3, 5) : pwritev2(fd, v, 3, 7, 0))
            == 2 * MB + 777);
        sweep();
        memset(far, 0, 2 * MB + 777);
        sweep();
        lseek(fd, 0, SEEK_SET);
        MUST((round == 0 ? readv(fd, v, 3) : round == 1 ? preadv(fd, v, 3, 5) : preadv2(fd, v, 3, 7, 0)) ==
            2 * MB + 777);
        MUST(is(far, 2 * MB + 777, 1));
    }
    MUST(readv(fd, v, -1) == -1 && errno == EINVAL);
    close(fd);
    return 0;
}

static int messages(void)
{
    int pair[2];
    for (int type = 0; type < 2; type++) {
        MUST(socketpair(AF_UNIX, type ? SOCK_SEQPACKET : SOCK_DGRAM, 0, pair) == 0);
        for (int round = 0; round < 4; round++) {
            fill(far, 50000, round);
            sweep();
            MUST(send(pair[0], far, 50000, 0) == 50000);
            memset(far + MB, 0, 60000);
            sweep();
            MUST(recv(pair[1], far + MB, 60000, 0) == 50000 && is(far + MB, 50000, round));
        }
        /* Passes a descriptor with a message in three parts. */
        struct msghdr *m = (struct msghdr *)(far + 2 * MB);
        struct iovec *v = (struct iovec *)(far + 2 * MB + 4096);
        struct cmsghdr *c = (struct cmsghdr *)(far + 3 * MB);
        memset(m, 0, sizeof *m);
        m->msg_namelen = 5000; /* ignored, because there is no name */
        for (int i = 0; i < 3; i++)
            v[i] = (struct iovec){far + i * MB / 2, 10000};
        fill(far, 10000, 7), fill(far + MB / 2, 10000, 8), fill(far + MB, 10000, 9);
        m->msg_iov = v, m->msg_iovlen = 3, m->msg_control = c, m->msg_controllen = CMSG_SPACE(sizeof(int));
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
        int one = 1;
        memcpy(CMSG_DATA(c), &one, sizeof one);
        sweep();
        MUST(sendmsg(pair[0], m, 0) == 30000);
        memset(far, 0, MB + 20000);
        memset(c, 0, 64);
        m->msg_controllen = 65536; /* longer than any control data */
        sweep();
        MUST(recvmsg(pair[1], m, 0) == 30000 && is(far, 10000, 7) && is(far + MB / 2, 10000, 8) && is(far +
            MB, 10000, 9));
        int got;
        MUST(c->cmsg_type == SCM_RIGHTS && m->msg_controllen >= CMSG_LEN(sizeof(int)) && !(m->msg_flags &
            MSG_CTRUNC));
        memcpy(&got, CMSG_DATA(c), sizeof got);
        MUST(got > 2 && close(got) == 0);
        /* Several messages in one call. */
        struct mmsghdr *mm = (struct mmsghdr *)(far + 3 * MB + 65536);
        memset(mm, 0, 4 * sizeof *mm);
        for (int i = 0; i < 4; i++)
            v[i] = (struct iovec){far + i * 10000, 9000}, mm[i].msg_hdr.msg_iov = &v[i],
                mm[i].msg_hdr.msg_iovlen = 1, fill(far + i * 10000, 9000, i);
        sweep();
        MUST(sendmmsg(pair[0], mm, 4, 0) == 4 && mm[3].msg_len == 9000);
        memset(far, 0, 40000);
        sweep();
        MUST(recvmmsg(pair[1], mm, 4, MSG_WAITFORONE, NULL) == 4);
        for (int i = 0; i < 4; i++)
            MUST(mm[i].msg_len == 9000 && is(far + i * 10000, 9000, i));
        close(pair[0]), close(pair[1]);
    }
    /* Socket addresses in the block. */
    int a = socket(AF_UNIX, SOCK_DGRAM, 0), b = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un *to = (struct sockaddr_un *)(far + 3 * MB), *from = (struct sockaddr_un *)(far + 3 *
        MB + 8192);
    socklen_t *length = (socklen_t *)(far + 2 * MB);
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    snprintf(to->sun_path + 1, 50, "azekura-calls-%d", getpid());
    sweep();
    MUST(bind(a, (struct sockaddr *)to, sizeof *to) == 0);
    to->sun_path[40] = 'b';
    MUST(bind(b, (struct sockaddr *)to, sizeof *to) == 0);
    to->sun_path[40] = 0;
    fill(far, 20000, 3);
    sweep();
    MUST(sendto(b, far, 20000, 0, (struct sockaddr *)to, sizeof *to) == 20000);
    *length = 1000; /* longer than any address */
    sweep();
    MUST(recvfrom(a, far + MB, 30000, 0, (struct sockaddr *)from, length) == 20000 && is(far + MB, 20000, 3));
    MUST(*length == sizeof *from && from->sun_path[40] == 'b');
    close(a), close(b);
    return 0;
}

static void *sends(void *fd)
{
    struct iovec part = {far, 3 * MB};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    return sendmsg(*(int *)fd, &m, 0) == 3 * MB ? fd : NULL;
}

/* One call sends, and one receives, all bytes of a long transfer. */
static int long_messages(void)
{
    unsigned char *to = malloc(3 * MB);
    for (int round = 0; round < 2; round++) {
        int pair[2];
        socklen_t length = 7;
        struct iovec parts[2] = {{to, 100000}, {to + 100000, 3 * MB - 100000}};
        struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
        pthread_t thread;
        void *sent;
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        fill(far, 3 * MB, round);
        memset(to, 0, 3 * MB);
        sweep();
        MUST(pthread_create(&thread, NULL, sends, &pair[0]) == 0);
        if (round == 0)
            MUST(recvmsg(pair[1], &m, MSG_WAITALL) == 3 * MB);
        else
            MUST(recvfrom(pair[1], to, 3 * MB, MSG_WAITALL, NULL, &length) == 3 * MB && length == 7);
        MUST(pthread_join(thread, &sent) == 0 && sent && is(to, 3 * MB, round));
        close(pair[0]), close(pair[1]);
    }
    free(to);
    return 0;
}

static int events(void)
{
    int fd = eventfd(0, EFD_NONBLOCK), e = epoll_create1(0);
    uint64_t *count = (uint64_t *)(far + MB);
    struct epoll_event *ready = (struct epoll_event *)(far + 2 * MB);
    struct pollfd *polled = (struct pollfd *)(far + 3 * MB);
    *ready = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 77}};
    sweep();
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, fd, ready) == 0);
    for (uint64_t i = 1; i < 5; i++) {
        *count = i;
        sweep();
        MUST(write(fd, count, 8) == 8);
        memset(ready, 0, sizeof *ready);
        sweep();
        MUST(epoll_wait(e, ready, 4, 0) == 1 && ready->data.u64 == 77);
        *polled = (struct pollfd){fd, POLLIN, 0};
        sweep();
        MUST(poll(polled, 1, 0) == 1 && polled->revents == POLLIN);
        fd_set *set = (fd_set *)far;
        struct timeval *now = (struct timeval *)(far + MB + 4096);
        FD_ZERO(set);
        FD_SET(fd, set);
        *now = (struct timeval){0, 0};
        sweep();
        MUST(select(fd + 1, set, NULL, NULL, now) == 1 && FD_ISSET(fd, set));
        *count = 0;
        sweep();
        MUST(read(fd, count, 8) == 8 && *count == i); /* the read resets the counter */
        MUST(read(fd, count, 8) == -1 && errno == EAGAIN);
    }
    /* A read of a pipe returns the available bytes and does not wait for more. */
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "abc", 3) == 3);
    sweep();
    MUST(read(ends[0], far, 3 * MB) == 3 && !memcmp(far, "abc", 3));
    return 0;
}

static int files(void)
{
    char *name = (char *)far;
    struct stat *s = (struct stat *)(far + MB);
    strcpy(name, "/tmp/azekura-calls-XXXXXX");
    sweep();
    int fd = mkstemp(name);
    MUST(fd >= 0);
    strcpy((char *)far + 2 * MB, name), strcat((char *)far + 2 * MB, ".new");
    sweep();
    MUST(fstat(fd, s) == 0 && s->st_size == 0);
    sweep();
    MUST(stat(name, s) == 0 && S_ISREG(s->st_mode));
    sweep();
    MUST(access(name, R_OK) == 0);
    sweep();
    MUST(rename(name, (char *)far + 2 * MB) == 0);
    sweep();
    int again = open((char *)far + 2 * MB, O_RDONLY);
    MUST(again >= 0 && close(again) == 0);
    sweep();
    MUST(unlink((char *)far + 2 * MB) == 0);
    sweep();
    MUST(stat(name, s) == -1 && errno == ENOENT);
    struct timespec *t = (struct timespec *)(far + 3 * MB);
    sweep();
    MUST(syscall(SYS_getpid) == getpid() && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, t) == 0);
    memset(far, 0, 100000);
    sweep();
    MUST(getrandom(far, 100000, 0) == 100000 && (far[99999] | far[99998] | far[99997] | far[99996]));
    /* Streams. */
    FILE *file = tmpfile();
    for (size_t i = 0; i < 3 * MB; i++)
        far[i] = 'a' + i % 26;
    far[3 * MB] = 0;
    sweep();
    MUST(fputs((char *)far, file) >= 0 && fputc('\n', file) == '\n');
    sweep();
    MUST(fwrite(far, 1000, 3000, file) == 3000 && fwrite(far, 0, 10, file) == 0 && fflush(file) == 0);
    rewind(file);
    memset(far, 0, 3 * MB + 1);
    sweep();
    MUST(fread(far, 1, 3 * MB + 1, file) == 3 * MB + 1 && far[3 * MB] == '\n' && far[3 * MB - 1] == 'a' +
        (3 * MB - 1) % 26);
    sweep();
    MUST(fread(far, 999, 4000, file) == 3000000 / 999 && feof(file) && far[2999999] == 'a' + 2999999 % 26);
    fclose(file);
    close(fd);
    return 0;
}

static uint32_t *word;

static void *wakes(void *ends)
{
    char go;
    if (read(*(int *)ends, &go, 1) != 1) return NULL;
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    while (syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 0 && __atomic_load_n(word,
        __ATOMIC_SEQ_CST) == 1)
        sched_yield();
    return NULL;
}

static int futexes(void)
{
    int ends[2];
    pthread_t thread;
    word = (uint32_t *)(far + 2 * MB);
    *word = 0;
    MUST(pipe(ends) == 0 && pthread_create(&thread, NULL, wakes, &ends[0]) == 0);
    MUST(write(ends[1], "g", 1) == 1);
    for (;;) {
        sweep();
        if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == 0) break;
        MUST(errno == EAGAIN || errno == EINTR);
        if (errno == EAGAIN) break;
    }
    __atomic_store_n(word, 2, __ATOMIC_SEQ_CST);
    MUST(pthread_join(thread, NULL) == 0);
    return 0;
}

static int programs(void)
{
    char **arguments = (char **)far, *text = (char *)far + 2 * MB;
    strcpy(text, "echo"), strcpy(text + 5000, "from far"), strcpy(text + 10000, "memory");
    arguments[0] = text, arguments[1] = text + 5000, arguments[2] = text + 10000, arguments[3] = NULL;
    int status;
    fflush(stdout);
    sweep();
    pid_t child = vfork();
    if (child == 0) {
        execvp(text, arguments);
        _exit(99);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

int main(void)
{
    far = malloc(4 * MB), crowd = malloc(6 * MB);
    if (vectors() || messages() || long_messages() || events() || files() || futexes() || programs())
        return 1;
    puts("well");
    return 0;
}
