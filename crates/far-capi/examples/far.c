/* Fills, sums and checks an array that is four times larger than its local memory.
 * cc far.c -I../include -L../../../target/release -lazekura_far -o far
 * LD_LIBRARY_PATH=../../../target/release ./far 127.0.0.1:7470 */
#include <azekura_far.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    azekura_far_options options = {0};
    options.bytes = 8 << 20;
    options.local_bytes = 2 << 20;
    options.page_bytes = 64 << 10;
    options.servers = argc > 1 ? argv[1] : "127.0.0.1:7470";
    azekura_far *memory = azekura_far_open(&options);
    if (!memory) {
        fprintf(stderr, "%s\n", azekura_far_error());
        return 1;
    }
    uint64_t *words = (uint64_t *)azekura_far_bytes(memory);
    size_t count = options.bytes / sizeof *words;
    for (size_t i = 0; i < count; i++)
        words[i] = i;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += words[i];
    uint64_t came, went;
    azekura_far_swaps(memory, &came, &went);
    printf("%s, pages went: %s\n", sum == (uint64_t)count * (count - 1) / 2 ? "right" : "wrong", went > 0 ?
        "yes" : "no");
    azekura_far_close(memory);
    return 0;
}
