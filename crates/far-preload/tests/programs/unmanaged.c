/* Uses 8 MiB of small blocks, and no large one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    for (int i = 0; i < 8 << 10; i++) {
        char *block = malloc(1 << 10);
        if (block == NULL) return 1;
        memset(block, i, 1 << 10);
    }
    puts("well");
    return 0;
}
