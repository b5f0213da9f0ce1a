/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool digits(const char *text, size_t length, uint64_t *value)
{
    uint64_t result = 0;

    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (result > (UINT64_MAX - digit) / 10)
            return false;
        result = result * 10 + digit;
    }
    *value = result;
    return true;
}

bool sim_number(const char *text, uint64_t *value)
{
    return digits(text, strlen(text), value);
}

bool sim_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {{"KiB", KIB}, {"MiB", MIB}, {"GiB", KIB * MIB}, {"", 1}};
    size_t length = strspn(text, "0123456789");
    uint64_t number;

    if (!digits(text, length, &number))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text + length, units[i].suffix) != 0)
            continue;
        if (number > UINT64_MAX / units[i].factor)
            return false;
        *bytes = number * units[i].factor;
        return true;
    }
    return false;
}

static bool plain(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c != '\0' && strchr("._-/:,", c) != NULL);
}

void sim_quote(char *out, size_t size, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t used = 0;

    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (plain(c)) {
            if (used + 1 >= size)
                break;
            out[used++] = *text;
        } else {
            if (used + 3 >= size)
                break;
            out[used++] = '%';
            out[used++] = hex[c >> 4];
            out[used++] = hex[c & 15];
        }
    }
    out[used] = '\0';
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

bool sim_value(const char *line, const char *key, char *out, size_t size)
{
    size_t length = strlen(key);
    size_t end = strcspn(line, "\n");
    const char *stop = line + end;

    out[0] = '\0';
    for (const char *word = line; word < stop;) {
        word += strspn(word, " ");
        size_t width = strcspn(word, " \n");
        if (width > length && word[length] == '=' && strncmp(word, key, length) == 0) {
            size_t used = 0;
            for (size_t i = length + 1; i < width && used + 1 < size; i++) {
                if (word[i] == '%' && i + 2 < width && nibble(word[i + 1]) >= 0 && nibble(word[i + 2]) >= 0) {
                    out[used++] = (char)(nibble(word[i + 1]) * 16 + nibble(word[i + 2]));
                    i += 2;
                } else {
                    out[used++] = word[i];
                }
            }
            out[used] = '\0';
            return true;
        }
        word += width;
    }
    return false;
}

uint64_t sim_value_number(const char *line, const char *key, uint64_t fallback)
{
    char text[32];
    uint64_t value;

    return sim_value(line, key, text, sizeof text) && sim_number(text, &value) ? value : fallback;
}

bool sim_socket_path(char *out, size_t size)
{
    const char *directory = getenv("GB10_SIM_DIR");
    struct sockaddr_un address;

    if (directory == NULL || directory[0] == '\0')
        directory = SIM_DIRECTORY;
    int length = snprintf(out, size, "%s/%s", directory, SIM_SOCKET);
    return length > 0 && (size_t)length < size && (size_t)length < sizeof address.sun_path;
}

static char *exchange(const char *request)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = 8192, used = 0, length = strlen(request);
    char *answer = NULL;

    if (!sim_socket_path(address.sun_path, sizeof address.sun_path)) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 || send(fd, request, length, MSG_NOSIGNAL) != (ssize_t)length)
        goto failed;
    answer = malloc(size);
    if (answer == NULL)
        goto failed;
    for (;;) {
        ssize_t got = recv(fd, answer + used, size - used - 1, 0);
        if (got < 0)
            goto failed;
        if (got == 0)
            break;
        used += (size_t)got;
        if (size - used < 2) {
            char *larger = realloc(answer, size * 2);
            if (larger == NULL)
                goto failed;
            answer = larger;
            size *= 2;
        }
    }
    if (used == 0) {
        errno = ECONNRESET;
        goto failed;
    }
    answer[used] = '\0';
    close(fd);
    return answer;

failed:;
    int saved = errno;
    free(answer);
    close(fd);
    errno = saved;
    return NULL;
}

char *sim_ask(const char *request)
{
    sigset_t all, before;

    /* On Linux sigprocmask acts on the calling thread; pthread_sigmask would need a newer glibc in containers. */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    char *answer = exchange(request);
    int saved = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return answer;
}
