/* Output that is in the stream's buffer when the layer writes its report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 8 << 20 };

int main(void)
{
    char *block = malloc(SIZE);
    memset(block, 1, SIZE);
    printf("%d\n", block[SIZE / 2]);
    return 5;
}
