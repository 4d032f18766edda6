/* Far memory for C: one part of the memory is local, the rest is on memory servers (`azekura
 * memory-server`). Link with -lazekura_far. */
#ifndef AZEKURA_FAR_H
#define AZEKURA_FAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct azekura_far azekura_far;

/* Initialize all fields with zero (`= {0}`), then set the required ones. */
typedef struct azekura_far_options {
    size_t bytes;          /* size of the memory in bytes */
    size_t local_bytes;    /* largest number of bytes that may be local; 0: 64 MiB */
    size_t page_bytes;     /* page size, a power of two from 4 KiB to 2 MiB; 0: 16 KiB */
    const char *servers;   /* memory servers as "host:port", separated by commas */
    size_t copies;         /* number of servers that store each page; 0: 1 */
    const char *spill;     /* path of a file that also stores each page; NULL: none */
    const char *auth_key;  /* path of the file with the servers' authentication key; NULL: none */
    const char *policy;    /* replacement policy, such as "u-clock"; NULL: adaptive */
    const char *mechanism; /* paging mechanism, such as "sigsegv"; NULL: the best available */
} azekura_far_options;

/* Creates far memory. Returns NULL on failure; azekura_far_error() returns the reason. */
azekura_far *azekura_far_open(const azekura_far_options *options);
/* Returns the reason why this thread's last azekura_far_open failed, valid until the next call of it. */
const char *azekura_far_error(void);
/* Returns the address of the first byte. The memory is initially zero, and any thread may use it. In a child
 * process made by fork nothing is mapped there. */
unsigned char *azekura_far_bytes(const azekura_far *memory);
/* Discards the whole pages within a range: they read as zeros. Returns -1 if the range is not inside the
 * memory, otherwise 0. */
int azekura_far_discard(const azekura_far *memory, size_t offset, size_t bytes);
/* Writes the number of pages that were paged in because of a fault (came), and the number of pages that were
 * sent to servers (went). */
void azekura_far_swaps(const azekura_far *memory, uint64_t *came, uint64_t *went);
/* Closes the far memory and discards its bytes. No thread may use it any more. Ignores NULL. */
void azekura_far_close(azekura_far *memory);

#ifdef __cplusplus
}
#endif
#endif
