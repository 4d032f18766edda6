/* Far memory for C: memory of which a part is local and the rest with memory servers (`azekura
 * memory-server`). Link with -lazekura_far. */
#ifndef AZEKURA_FAR_H
#define AZEKURA_FAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct azekura_far azekura_far;

/* Set all to zero first (`= {0}`), then what is wanted. */
typedef struct azekura_far_options {
    size_t bytes;          /* how much there is in all */
    size_t local_bytes;    /* how much of it may be local; 0: 64 MiB */
    size_t page_bytes;     /* unit of demand, 4 KiB to 2 MiB; 0: 16 KiB */
    const char *servers;   /* "host:port", several with commas between */
    size_t copies;         /* so many servers have each page; 0: 1 */
    const char *spill;     /* a file that has each page, too; NULL: none */
    const char *auth_key;  /* a file with the key that the servers know; NULL: none */
    const char *policy;    /* the replacement policy, such as "u-clock"; NULL: the default */
    const char *mechanism; /* such as "sigsegv"; NULL: the best there is */
} azekura_far_options;

/* NULL if it cannot be made: azekura_far_error() says why. */
azekura_far *azekura_far_open(const azekura_far_options *options);
/* Why this thread's last azekura_far_open failed; valid until its next one. */
const char *azekura_far_error(void);
/* The first byte; zeros at first. Any thread may use it. A child made by fork has nothing there. */
unsigned char *azekura_far_bytes(const azekura_far *memory);
/* Gives the whole pages within a range back: they are zeros. -1 if the range does not lie within, else 0. */
int azekura_far_discard(const azekura_far *memory, size_t offset, size_t bytes);
/* Pages that came because they were touched, and pages that were sent away, until now. */
void azekura_far_swaps(const azekura_far *memory, uint64_t *came, uint64_t *went);
/* Ends it. Nobody may use it any more. */
void azekura_far_close(azekura_far *memory);

#ifdef __cplusplus
}
#endif
#endif
