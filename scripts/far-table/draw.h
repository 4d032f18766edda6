/* A generator of random numbers with a fixed seed: xorshift64 (Marsaglia 2003). */
#include <stdint.h>

static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
