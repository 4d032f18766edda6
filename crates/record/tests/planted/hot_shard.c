// Sixteen shards. Nearly all threads use the same one.
#include "planted.h"
static struct { pthread_mutex_t mutex; long pad[8]; } shards[16];
static void *visitor(void *number) {
    for (int i = 0; i < 80; i++) {
        int shard = i % 10 == 0 ? (int)(long)number : 5;
        pthread_mutex_lock(&shards[shard].mutex);
        work_us(300);
        pthread_mutex_unlock(&shards[shard].mutex);
        work_us(100);
    }
    return NULL;
}
int main(void) {
    for (int i = 0; i < 16; i++)
        pthread_mutex_init(&shards[i].mutex, NULL);
    run_one(6, visitor);
}
