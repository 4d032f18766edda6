/* Breadth-first search of a random graph in compressed rows: prints the number of vertices at each depth. */
#include "draw.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    uint32_t vertices = (uint32_t)strtoul(argc > 1 ? argv[1] : "400000", NULL, 10), degree = 8;
    size_t edges = (size_t)vertices * degree;
    uint32_t *target = malloc(edges * sizeof *target), *depth = malloc(vertices * sizeof *depth);
    uint32_t *queue = malloc(vertices * sizeof *queue);
    if (!target || !depth || !queue)
        return 1;
    for (size_t i = 0; i < edges; i++)
        target[i] = (uint32_t)(draw() % vertices);
    memset(depth, 0xff, vertices * sizeof *depth);
    size_t head = 0, tail = 0;
    depth[queue[tail++] = 0] = 0;
    while (head < tail) {
        uint32_t from = queue[head++];
        for (uint32_t i = 0; i < degree; i++) {
            uint32_t to = target[(size_t)from * degree + i];
            if (depth[to] == UINT32_MAX) {
                depth[to] = depth[from] + 1;
                queue[tail++] = to;
            }
        }
    }
    uint64_t count[64] = {0};
    for (size_t i = 0; i < tail; i++)
        count[depth[queue[i]] & 63]++;
    for (int i = 0; i < 64 && count[i]; i++)
        printf("%d %llu\n", i, (unsigned long long)count[i]);
    return 0;
}
