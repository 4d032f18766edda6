/* System calls of the random program, with buffers and arguments in its regions. */
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

static int file, stream[2], datagram[2], tube[2], second[2];
static char directory[] = "/tmp/azekura-random-XXXXXX";

static void prepare_calls(void)
{
    file = file_of(1 << 20);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, stream)
        || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, datagram)
        || pipe2(tube, O_NONBLOCK) || pipe2(second, O_NONBLOCK) || !mkdtemp(directory)) abort();
    for (int i = 0, fd; i < 40; i++) {
        char name[80];
        sprintf(name, "%s/%d", directory, i);
        if ((fd = open(name, O_CREAT | O_WRONLY, 0600)) >= 0) close(fd), unlink(name);
    }
    rmdir(directory);
}

static void drain(int fd)
{
    char piece[PIECE];
    uint64_t h = 0;
    long all = 0, got;
    while ((got = read(fd, piece, sizeof piece)) > 0) h = hash(piece, got, h), all += got;
    printf("  drained %ld %lx\n", all, (long)h);
}

static void show_file(void)
{
    static char piece[PIECE];
    uint64_t h = 0;
    struct stat known;
    fstat(file, &known);
    for (long at = 0, got; (got = pread(file, piece, PIECE, at)) > 0; at += got) h = hash(piece, got, h);
    printf("  file %ld at %ld: %lx\n", (long)known.st_size, (long)lseek(file, 0, SEEK_CUR), (long)h);
    if (known.st_size > 3 << 20 && ftruncate(file, 1 << 20)) abort();
}

/* Up to six parts; the list itself may be far. */
static struct iovec *parts_of(size_t most, int *count)
{
    static struct iovec own[6];
    struct iovec *far = draw(2) ? (struct iovec *)usable(sizeof own) : NULL, *list = far ? far : own;
    *count = 1 + draw(6);
    for (int i = 0; i < *count; i++) {
        size_t bytes;
        unsigned char *at = bytes_of(most / *count, &bytes);
        list[i] = (struct iovec){at, bytes};
    }
    return list;
}

/* Replaces the bytes of the parts. After an error they may be those of before or of the message. */
static void renew(const struct iovec *list, int count)
{
    for (int i = 0; i < count; i++) fill_over(list[i].iov_base, list[i].iov_len);
}

/* Makes the list of parts equal in each run: it contains addresses. */
static void forget(struct iovec *list, int count)
{
    memset(list, 0, count * sizeof *list);
}

static void call_file(void)
{
    size_t count;
    unsigned char *at = bytes_of(600 << 10, &count);
    off_t where = draw(1 << 20);
    switch (draw(4)) {
    case 0: say("write", write(file, at, count)); break;
    case 1: say("pwrite", pwrite(file, at, count, where)); break;
    case 2: say("read", read(file, at, count)); break;
    default: say("pread", pread(file, at, count, where));
    }
    if (draw(3) == 0) lseek(file, draw(1 << 20), SEEK_SET);
    show_file();
}

static void call_vector(void)
{
    int count;
    struct iovec *list = parts_of(600 << 10, &count);
    off_t where = draw(4) ? (off_t)draw(1 << 20) : -1;
    switch (draw(6)) {
    case 0: say("writev", writev(file, list, count)); break;
    case 1: say("readv", readv(file, list, count)); break;
    case 2: say("pwritev", pwritev(file, list, count, where)); break;
    case 3: say("preadv", preadv(file, list, count, where)); break;
    case 4: say("pwritev2", pwritev2(file, list, count, where, draw(2) ? RWF_APPEND : 0)); break;
    default: say("preadv2", preadv2(file, list, count, where, 0));
    }
    forget(list, count);
    show_file();
}

static void call_pipe(void)
{
    size_t count;
    unsigned char *at = bytes_of(50000, &count);
    int parts, from = tube[0], to = tube[1];
    if (draw(2)) {
        say("pipe", write(to, at, count));
    } else {
        struct iovec *list = parts_of(50000, &parts);
        say("pipe by vmsplice or writev", draw(2) ? writev(to, list, parts) : vmsplice(to, list, parts, 0));
        forget(list, parts);
    }
    if (draw(3) == 0) {
        say("tee", tee(from, second[1], 70000, SPLICE_F_NONBLOCK));
        drain(second[0]);
    }
    loff_t own = draw(1 << 20), *where = draw(2) ? (loff_t *)usable(8) : NULL;
    if (where) *where = own; else where = &own;
    switch (draw(4)) {
    case 0: say("splice", splice(from, NULL, file, where, 60000, 0)); break;
    case 1: say("splice in", splice(file, where, to, NULL, 9000, SPLICE_F_NONBLOCK)); break;
    case 2: say("read of a pipe", read(from, bytes_of(70000, &count), 1 + draw(count))); break;
    default: say("FIONREAD", ioctl(from, FIONREAD, bytes_of(4, &count)));
    }
    drain(from);
    show_file();
}

static void call_copy(void)
{
    loff_t own[2] = {draw(1 << 19), (1 << 19) + draw(1 << 19)}, *far = (loff_t *)usable(16);
    loff_t *where = far ? far : own;
    where[0] = own[0], where[1] = own[1];
    say("copy_file_range", copy_file_range(file, where, file, where + 1, draw(1 << 18), 0));
    printf("  %ld %ld\n", (long)where[0], (long)where[1]);
    say("sendfile", sendfile(stream[0], file, where, 5000));
    printf("  %ld\n", (long)where[0]);
    drain(stream[1]);
    show_file();
}

static void call_socket(void)
{
    size_t count;
    int *pair = draw(2) ? stream : datagram;
    unsigned char *at = bytes_of(60000, &count);
    say("send", draw(2) ? send(pair[0], at, count, 0) : write(pair[0], at, count));
    at = bytes_of(60000, &count);
    memset(&errno, 0, sizeof errno);
    int flags = (draw(3) ? 0 : MSG_PEEK) | (draw(3) ? 0 : MSG_TRUNC);
    long got = pair == stream && flags & MSG_TRUNC ? 0 : recv(pair[1], at, count, flags);
    say("recv", got);
    drain(pair[1]);
}

static void call_message(void)
{
    int count, number = 1 + draw(3), *pair = draw(2) ? stream : datagram;
    struct iovec *list = parts_of(60000, &count);
    struct mmsghdr own[3] = {0}, *far = (struct mmsghdr *)usable(sizeof own), *all = far ? far : own;
    memset(all, 0, sizeof own);
    for (int i = 0; i < number; i++) all[i].msg_hdr.msg_iov = list, all[i].msg_hdr.msg_iovlen = count;
    if (draw(2)) say("sendmsg", sendmsg(pair[0], &all->msg_hdr, 0));
    else {
        int sent = sendmmsg(pair[0], all, number, 0);
        say("sendmmsg", sent);
        for (int i = 0; i < sent; i++) printf("  %u\n", all[i].msg_len);
    }
    forget(list, count);
    list = parts_of(60000, &count);
    memset(all, 0, sizeof own);
    for (int i = 0; i < number; i++) all[i].msg_hdr.msg_iov = list, all[i].msg_hdr.msg_iovlen = count;
    if (draw(2)) {
        long got = recvmsg(pair[1], &all->msg_hdr, 0);
        say("recvmsg", got);
        if (got < 0) renew(list, count);
        printf("  flags %x\n", all->msg_hdr.msg_flags);
    } else {
        struct timespec no = {0}, *time = draw(2) ? NULL : &no;
        int got = recvmmsg(pair[1], all, number, MSG_DONTWAIT, time);
        say("recvmmsg", got);
        if (got < number) renew(list, count);
        for (int i = 0; i < got; i++) printf("  %u %x\n", all[i].msg_len, all[i].msg_hdr.msg_flags);
    }
    forget(list, count), memset(all, 0, sizeof own);
    drain(pair[1]);
}

static void call_own(void)
{
    int count, number;
    static struct iovec copy[6];
    struct iovec *list = parts_of(200 << 10, &count);
    memcpy(copy, list, count * sizeof *list);
    number = count;
    forget(list, count);
    list = parts_of(200 << 10, &count);
    say("process_vm", draw(2) ? process_vm_readv(getpid(), list, count, copy, number, 0)
        : process_vm_writev(getpid(), list, count, copy, number, 0));
    forget(list, count);
    size_t bytes;
    int fd = open("/proc/self/mem", O_RDWR);
    unsigned char *at = bytes_of(LARGEST, &bytes), *from = usable(LARGEST);
    if (from)
        say("mem", draw(2) ? pread(fd, at, bytes, (uintptr_t)from) : pwrite(fd, at, bytes, (uintptr_t)from));
    close(fd);
}

static void call_queue(void)
{
    size_t bytes;
    aio_context_t queue = 0;
    struct iocb own, *far = (struct iocb *)usable(sizeof own), *request = far ? far : &own;
    struct io_event events[2], *event = (struct io_event *)usable(sizeof events);
    struct timespec time = {5, 0};
    unsigned char *at = bytes_of(300 << 10, &bytes);
    memset(request, 0, sizeof own);
    request->aio_fildes = file, request->aio_buf = (uintptr_t)at, request->aio_nbytes = bytes;
    request->aio_lio_opcode = draw(2) ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, request->aio_offset = draw(1 << 20);
    if (syscall(SYS_io_setup, 4, &queue)) return;
    long done = syscall(SYS_io_submit, queue, 1L, &request);
    say("io_submit", done);
    if (!event) event = events;
    if (done == 1 && syscall(SYS_io_getevents, queue, 1L, 1L, event, &time) == 1)
        printf("  %lld\n", (long long)event->res), memset(event, 0, sizeof events);
    syscall(SYS_io_destroy, queue);
    memset(request, 0, sizeof own);
    show_file();
}

static void call_word(void)
{
    size_t bytes;
    uint32_t *word = (uint32_t *)((uintptr_t)bytes_of(4, &bytes) & ~(uintptr_t)3);
    struct timespec short_time = {0, 1000}, *far = (struct timespec *)usable(16);
    if (far) *far = short_time;
    if (rights_of((void *)word) != USABLE) {
        say("futex", syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 77777u, &short_time));
        return;
    }
    *word = 5;
    say("futex", syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5u, far ? far : &short_time));
    say("futex", syscall(SYS_futex, word, FUTEX_WAIT, 6u, NULL));
    say("wake", syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL));
    say("wake op", syscall(SYS_futex, word, FUTEX_WAKE_OP, 1, 1L, word, FUTEX_OP(FUTEX_OP_ADD, 3,
        FUTEX_OP_CMP_EQ, 5)));
    printf("  %u\n", *word);
    say("sleep", clock_nanosleep(CLOCK_MONOTONIC, 0, far ? far : &short_time, NULL));
}

static void call_small(void)
{
    size_t bytes;
    unsigned char *at = bytes_of(9000, &bytes);
    struct stat known;
    switch (draw(8)) {
    case 0:
        say("getrandom", getrandom(at, bytes, 0));
        fill_over(at, bytes);
        break;
    case 1: {
        int fd = open("/proc/self/attr", O_RDONLY | O_DIRECTORY);
        say("getdents", syscall(SYS_getdents64, fd, at, bytes) >= 0);
        fill_over(at, bytes), close(fd);
        break;
    }
    case 2:
        say("fstat", fstat(file, bytes < sizeof known ? &known : (struct stat *)at));
        fill_over(at, bytes);
        break;
    case 3: say("readlink", readlink("/proc/self/cwd", (char *)at, 1) == 1); break;
    case 4: say("getcwd", getcwd((char *)at, bytes) != NULL || errno == ERANGE); break;
    case 5: say("open", open((char *)at, O_RDONLY | O_PATH) < 0); break;
    case 6: say("TIOCGWINSZ", ioctl(file, TIOCGWINSZ, at)); break;
    default: say("uname", syscall(SYS_uname, usable(400) ?: statics));
    }
}

static void call_wait(void)
{
    struct itimerspec own = {{0, 0}, {1000, 0}}, *far = (struct itimerspec *)usable(sizeof own);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), ready = epoll_create1(0);
    if (far) *far = own;
    say("timerfd", timerfd_settime(timer, 0, far ? far : &own, NULL));
    say("timerfd", timerfd_gettime(timer, far ? far : &own));
    if (far) memset(far, 0, sizeof own);
    struct epoll_event about = {EPOLLOUT, {.u64 = 77}}, *events = (struct epoll_event *)usable(400);
    say("epoll_ctl", epoll_ctl(ready, EPOLL_CTL_ADD, stream[0], &about));
    size_t bytes;
    struct epoll_event *any_event = draw(3) ? events : (struct epoll_event *)bytes_of(400, &bytes);
    if (any_event) say("epoll_wait", epoll_wait(ready, any_event, 10, 0));
    struct pollfd *polled = (struct pollfd *)usable(16);
    if (polled) {
        polled[0] = (struct pollfd){stream[0], POLLIN | POLLOUT, 0}, polled[1] = (struct pollfd){-1, 0, 3};
        struct timespec *none = (struct timespec *)usable(16);
        if (none) *none = (struct timespec){0};
        say("ppoll", ppoll(polled, 2, none, NULL));
        printf("  %d %d\n", polled[0].revents, polled[1].revents);
        memset(polled, 0, 16);
    }
    fd_set *set = (fd_set *)usable(sizeof *set);
    struct timeval time = {0};
    if (set) {
        FD_ZERO(set);
        FD_SET(stream[0], set);
        say("select", select(stream[0] + 1, NULL, set, NULL, &time));
        memset(set, 0, sizeof *set);
    }
    close(timer), close(ready);
}

static void call_stream(void)
{
    unsigned char *room = usable(9000), *at = usable(30000), *to = usable(30000);
    if (!room || !at || !to) return;
    FILE *stream = fdopen(dup(file), "r+");
    setvbuf(stream, (char *)room, _IOFBF, 8192);
    fseek(stream, 1000, SEEK_SET);
    say("fwrite", fwrite(at, 3, 9000, stream));
    fseek(stream, 5000, SEEK_SET);
    say("fread", fread(to, 1, 30000, stream));
    fclose(stream);
    memset(room, 0, 9000);
    printf("  %lx\n", (long)hash(to, 30000, 0));
}

static void call_spawn(void)
{
    char *text = (char *)usable(3000);
    if (!text) return;
    char **list = (char **)text;
    const char *words[] = {"/bin/echo", "from", "far"};
    for (int i = 0; i < 3; i++) list[i] = strcpy(text + 500 + 300 * i, words[i]);
    list[3] = list[4] = NULL;
    fflush(stdout);
    pid_t child = -1;
    int status = 0;
    if (draw(2)) {
        say("spawn", posix_spawn(&child, list[0], NULL, NULL, list, list + 4));
    } else if ((child = vfork()) == 0) {
        execve(list[0], list, list + 4);
        _exit(9);
    }
    waitpid(child, &status, 0);
    printf("  %x\n", status);
    memset(text, 0, 3000);
}

static void (*const calls[])(void) = {call_file, call_file, call_vector, call_vector, call_pipe, call_copy,
    call_socket, call_message, call_message, call_own, call_queue, call_word, call_small, call_wait,
    call_stream};
