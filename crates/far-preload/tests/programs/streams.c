/* The buffers of streams, and data that bypass them, are paged out before each call that passes them to the
 * kernel; also the buffers of directories. The program is also linked with its own allocator (allocator.c),
 * so that all memory of the C library is far, too. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define MUST(what) do { if (!(what)) return printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)), \
    1; } while (0)

enum { MB = 1 << 20, LONG = 3 * MB };
__attribute__((weak)) int allocated_here(const void *block); /* defined by allocator.c */

static char *far;
static unsigned char *volatile crowd;

static void sweep(void)
{
    for (size_t i = 0; i < 6 * MB; i += 4096)
        crowd[i]++;
}

static int letter(size_t i) { return 'a' + (int)((i * 2654435761u >> 9) % 26); }

/* Writes in pieces that fill the buffer, and reads back in the same way, with the C library's own buffer or
 * one of the program. */
static int buffered(char *buffer, size_t bytes)
{
    char name[] = "/tmp/azekura-streams-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0);
    FILE *file = fdopen(fd, "w+");
    MUST(file);
    unlink(name);
    MUST(!buffer || setvbuf(file, buffer, _IOFBF, bytes) == 0);
    for (size_t i = 0; i < 12000; i++) {
        if (i % 1000 == 999) sweep();
        MUST(fputc(letter(i), file) == letter(i));
    }
    sweep();
    MUST(fflush(file) == 0);
    rewind(file);
    for (size_t i = 0; i < 12000; i++) {
        if (i % 1000 == 999) sweep();
        MUST(fgetc(file) == letter(i));
    }
    MUST(fgetc(file) == EOF && !ferror(file));
    MUST(fclose(file) == 0);
    return 0;
}

static int printed(FILE *to, const char *form, ...)
{
    va_list rest;
    va_start(rest, form);
    int done = vfprintf(to, form, rest);
    va_end(rest);
    return done;
}

static int texts(void)
{
    FILE *file = tmpfile();
    for (size_t i = 0; i < LONG; i++)
        far[i] = (char)letter(i);
    far[LONG] = 0;
    sweep();
    MUST(fprintf(file, "%s\n", far) == LONG + 1);
    sweep();
    MUST(printed(file, "<%.*s>", LONG, far) == LONG + 2);
    sweep();
    MUST(fputs(far, file) >= 0);
    sweep();
    MUST(fwrite(far, 1, LONG, file) == LONG && fflush(file) == 0);
    sweep();
    MUST(dprintf(fileno(file), "%.500000s", far) == 500000);
    rewind(file);
    for (int at = 0; at < 4; at++) {
        if (at == 1) MUST(fgetc(file) == '\n' && fgetc(file) == '<');
        if (at == 2) MUST(fgetc(file) == '>');
        memset(far, 0, LONG);
        sweep();
        MUST(fread(far, 1, LONG, file) == LONG);
        for (size_t i = 0; i < LONG; i++)
            MUST(far[i] == letter(i));
    }
    fclose(file);
    return 0;
}

static int lines(void)
{
    FILE *file = tmpfile();
    wchar_t *wide = (wchar_t *)far;
    for (int i = 0; i < 300000; i++)
        wide[i] = letter(i);
    wide[300000] = 0;
    sweep();
    MUST(fputws(wide, file) >= 0 && fputwc('\n', file) == '\n' && fflush(file) == 0);
    rewind(file);
    memset(far, 0, 1200004);
    sweep();
    MUST(fgetws(wide, 300001, file) == wide && wcslen(wide) == 300000 && wide[299999] == letter(299999));
    fclose(file);
    /* The output of this program and of another one. */
    file = popen("tr a-z A-Z | tail -c 3", "w");
    MUST(file && setvbuf(file, far, _IOFBF, 4 * MB) == 0);
    for (int i = 0; i < 200000; i++)
        fputc(letter(i), file);
    fputs("end", file);
    sweep();
    MUST(pclose(file) == 0);
    file = popen("seq 100000", "r");
    MUST(file && setvbuf(file, far, _IOFBF, MB) == 0);
    long sum = 0, next;
    while (fscanf(file, "%ld", &next) == 1) {
        if (next % 25000 == 0) sweep();
        sum += next;
    }
    MUST(pclose(file) == 0 && sum == 5000050000);
    return 0;
}

static int directory(void)
{
    char name[] = "/tmp/azekura-streams-XXXXXX", path[64];
    MUST(mkdtemp(name));
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "%s/%d", name, i);
        fclose(fopen(path, "w"));
    }
    int found = 0;
    DIR *entries = opendir(name);
    MUST(entries);
    /* The kernel fails only if the page leaves between the C library's access and the call: so the program
     * checks the owner of the memory. */
    MUST(!allocated_here || allocated_here(malloc(1)));
    MUST(!allocated_here || !getenv("AZEKURA_FAR_SERVERS") || !allocated_here(entries));
    sweep();
    for (struct dirent *entry; errno = 0, entry = readdir(entries);)
        found += entry->d_name[0] != '.';
    MUST(errno == 0 && found == 300);
    rewinddir(entries);
    sweep();
    MUST(readdir(entries));
    MUST(closedir(entries) == 0);
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "%s/%d", name, i);
        unlink(path);
    }
    MUST(rmdir(name) == 0);
    return 0;
}

int main(void)
{
    for (int i = 0; i < 3; i++) { /* uses up memory mapped before far memory was set up */
        void *volatile used = malloc(100 << 10);
        if (!used) return 1;
    }
    far = malloc(4 * MB), crowd = malloc(6 * MB);
    if (buffered(NULL, 0) || buffered(far + MB, 5000) || buffered(far + MB + 77, 100000) || texts() ||
        lines() || directory()) return 1;
    setvbuf(stdout, far, _IOFBF, 65536);
    puts("well");
    sweep();
    return 0; /* exit writes the rest of the buffer */
}
