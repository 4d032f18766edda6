// Locks that are not variables, created in two places. Those of accounts are contended, those of sessions are
// not.
#include "planted.h"
struct object { pthread_mutex_t mutex; };
static struct object *accounts[2], *sessions[64];
static __attribute__((noinline)) struct object *make_account(void) {
    struct object *account = calloc(1, sizeof *account);
    pthread_mutex_init(&account->mutex, NULL);
    return account;
}
static __attribute__((noinline)) struct object *make_session(void) {
    struct object *session = calloc(1, sizeof *session);
    pthread_mutex_init(&session->mutex, NULL);
    return session;
}
static void use(struct object *object, long us) {
    pthread_mutex_lock(&object->mutex);
    work_us(us);
    pthread_mutex_unlock(&object->mutex);
}
static void *clerk(void *number) {
    for (int i = 0; i < 80; i++) {
        use(sessions[(i + (long)number) % 64], 50);
        use(accounts[i % 2], 400);
    }
    return NULL;
}
// The recording begins with the first thread: of a lock created earlier, it has no place of creation.
static void *maker(void *unused) {
    for (int i = 0; i < 2; i++)
        accounts[i] = make_account();
    for (int i = 0; i < 64; i++)
        sessions[i] = make_session();
    return NULL;
}
int main(void) {
    run_one(1, maker);
    run_one(8, clerk);
}
