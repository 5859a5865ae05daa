/* What no control socket can be cheaper than: gives each command an answer that was written down before, and nothing else.
 *
 *   control_floor SOCKET ANSWERS
 *
 * ANSWERS has for each command a line "COMMAND BYTES" and then that many bytes of answer. Runs in the background as the control
 * thread of penstock does (crates/sys/src/cpu.rs: nice 10, a slice of 20 ms). bench/control_load.py compiles and starts it.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_ANSWERS = 256, MOST_CONNECTIONS = 64, READ = 65536, WRITTEN = 1 << 22 };

static struct { char *command, *text; size_t length; } answers[MOST_ANSWERS];
static int known;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void read_answers(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[4096];
    if (!file)
        fail(path);
    while (known < MOST_ANSWERS && fgets(line, sizeof line, file)) {
        char *space = strrchr(line, ' ');
        if (!space)
            fail("a line without a number of bytes");
        *space = 0;
        answers[known].command = strdup(line);
        answers[known].length = strtoul(space + 1, NULL, 10);
        answers[known].text = malloc(answers[known].length);
        if (fread(answers[known].text, 1, answers[known].length, file) != answers[known].length)
            fail("an answer that is cut");
        known++;
    }
    fclose(file);
}

static void go_to_the_background(void)
{
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; }
        attributes = { sizeof attributes, 0, 0, 10, 0, 20000000, 0, 0 };
    if (syscall(SYS_sched_setattr, 0, &attributes, 0))
        fail("sched_setattr");
}

static void write_all(int to, const char *from, size_t length)
{
    while (length) {
        ssize_t written = write(to, from, length);
        if (written < 0)
            return;
        from += written, length -= written;
    }
}

/* Answers the whole lines that have come; returns how many bytes of an unfinished line are left. */
static size_t answer(int connection, char *text, size_t length)
{
    static char out[WRITTEN];
    size_t filled = 0;
    char *line = text, *end;
    while ((end = memchr(line, '\n', text + length - line))) {
        *end = 0;
        int at = 0;
        while (at < known && strcmp(answers[at].command, line))
            at++;
        if (at == known) {
            fprintf(stderr, "no answer to %s\n", line);
            exit(1);
        }
        if (filled + answers[at].length > sizeof out) {
            write_all(connection, out, filled);
            filled = 0;
        }
        memcpy(out + filled, answers[at].text, answers[at].length);
        filled += answers[at].length;
        line = end + 1;
    }
    write_all(connection, out, filled);
    length -= line - text;
    memmove(text, line, length);
    return length;
}

int main(int count, char **words)
{
    static struct pollfd polled[MOST_CONNECTIONS + 1];
    static char texts[MOST_CONNECTIONS + 1][READ];
    static size_t lengths[MOST_CONNECTIONS + 1];
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int open = 1;
    if (count != 3 || strlen(words[1]) >= sizeof address.sun_path)
        return fputs("usage: control_floor SOCKET ANSWERS\n", stderr), 2;
    strcpy(address.sun_path, words[1]);
    read_answers(words[2]);
    go_to_the_background();
    polled[0] = (struct pollfd){ socket(AF_UNIX, SOCK_STREAM, 0), POLLIN, 0 };
    if (polled[0].fd < 0 || bind(polled[0].fd, (struct sockaddr *)&address, sizeof address) || listen(polled[0].fd, 64))
        fail(words[1]);
    for (;;) {
        if (poll(polled, open, -1) < 0)
            fail("poll");
        for (int at = open - 1; at > 0; at--) {
            if (!polled[at].revents)
                continue;
            ssize_t got = read(polled[at].fd, texts[at] + lengths[at], READ - lengths[at]);
            if (got > 0) {
                lengths[at] = answer(polled[at].fd, texts[at], lengths[at] + got);
                continue;
            }
            close(polled[at].fd);
            open--;
            polled[at] = polled[open];
            lengths[at] = lengths[open];
            memcpy(texts[at], texts[open], lengths[open]);
        }
        if (polled[0].revents && open <= MOST_CONNECTIONS) {
            polled[open] = (struct pollfd){ accept(polled[0].fd, NULL, NULL), POLLIN, 0 };
            lengths[open] = 0;
            open += polled[open].fd >= 0;
        }
    }
}
