// OpenMP: three of four threads wait at barriers for one that sleeps.
#define _GNU_SOURCE
#include <unistd.h>
__attribute__((noinline)) static void part(int of) {
    if (of == 0)
        usleep(5000);
}
int main(void) {
    for (int i = 0; i < 100; i++) {
#pragma omp parallel for num_threads(4) schedule(static, 1)
        for (int of = 0; of < 4; of++)
            part(of);
    }
    return 0;
}
