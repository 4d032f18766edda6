/* A program with a name of a sanitizer among its dynamic symbols. */
#include <stdio.h>

__attribute__((weak)) void __tsan_init(void);

int main(void)
{
    return puts(__tsan_init ? "with" : "without") < 0;
}
