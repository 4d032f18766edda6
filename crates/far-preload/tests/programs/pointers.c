/* Calls with lists and messages at an address that cannot be read, beside paged-out memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

static void say(const char *name, long result)
{
    printf("%s: %ld, %d\n", name, result, result < 0 ? errno : 0);
}

int main(void)
{
    int ends[2];
    enum { SIZE = 16 << 20 };
    unsigned char *far = malloc(SIZE);
    void *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < SIZE; i += 4096) far[i] = (unsigned char)i + 1;
    if (none == MAP_FAILED || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) return perror("setup"), 1;
    say("writev", writev(ends[0], none, 1));
    say("sendmsg", sendmsg(ends[0], none, 0));
    say("recvmsg", recvmsg(ends[1], none, MSG_DONTWAIT));
    struct iovec part = {far, 3};
    say("writev", writev(ends[0], &part, 1));
    part.iov_base = none;
    say("readv", readv(ends[1], &part, 1));
    return 0;
}
