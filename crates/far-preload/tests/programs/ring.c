/* Makes a system call for an io_uring by the processor's instruction, as a static liburing does. */
#include <stdio.h>

int main(void)
{
    long result = -1;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(425L), "D"(0L), "S"(0L) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = 425, first __asm__("x0") = 0, second __asm__("x1") = 0;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    result = first;
#endif
    return puts(result < 0 ? "no ring of no entries" : "a ring") < 0;
}
