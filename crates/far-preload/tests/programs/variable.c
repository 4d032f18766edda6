/* A library with a thread-local variable. */
static __thread int variable;

int *of_this_thread(void)
{
    return &variable;
}
