/* Touches the pages of 6 MiB in an order that no prefetcher predicts, without other work. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 16 << 10, PAGES = 384 };

int main(void)
{
    unsigned char *at = calloc(PAGES, PAGE);
    uint32_t state = 1;
    long sum = 0;
    for (int page = 0; page < PAGES; page++) at[page * PAGE] = 1;
    for (int i = 0; i < 6000; i++) {
        state = state * 1664525u + 1013904223u;
        sum += ++at[(state >> 8) % PAGES * PAGE];
    }
    printf("%ld\n", sum);
    return 0;
}
