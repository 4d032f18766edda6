/* Hash join: builds a hash table (open addressing) from one relation, and probes it with another relation of
   twice as many rows in random order. Prints the number and a checksum of the joined rows. */
#include "draw.h"
#include <stdio.h>
#include <stdlib.h>

struct row {
    uint32_t key, value;
};

int main(int argc, char **argv) {
    size_t rows = strtoul(argc > 1 ? argv[1] : "500000", NULL, 10), slots = 1;
    while (slots < 2 * rows)
        slots *= 2;
    struct row *build = malloc(rows * sizeof *build), *probe = malloc(2 * rows * sizeof *probe);
    struct row *table = calloc(slots, sizeof *table);
    if (!build || !probe || !table)
        return 1;
    for (size_t i = 0; i < rows; i++)
        build[i] = (struct row){(uint32_t)i * 2654435761u | 1, (uint32_t)i};
    for (size_t i = 0; i < 2 * rows; i++)
        probe[i] = (struct row){(uint32_t)(draw() % (2 * rows)) * 2654435761u | 1, (uint32_t)i};
    for (size_t i = 0; i < rows; i++) {
        size_t at = build[i].key * 0x9e3779b97f4a7c15u >> 20 & (slots - 1);
        while (table[at].key)
            at = (at + 1) & (slots - 1);
        table[at] = build[i];
    }
    uint64_t joined = 0, sum = 0;
    for (size_t i = 0; i < 2 * rows; i++) {
        size_t at = probe[i].key * 0x9e3779b97f4a7c15u >> 20 & (slots - 1);
        for (; table[at].key; at = (at + 1) & (slots - 1))
            if (table[at].key == probe[i].key) {
                joined++;
                sum = sum * 31 + (probe[i].value ^ table[at].value);
            }
    }
    printf("%llu %llu\n", (unsigned long long)joined, (unsigned long long)sum);
    return 0;
}
