/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "http.h"

#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define HEAD_MAX 16384
#define BODY_MAX (4 * 1024 * 1024)
#define IDLE_SECONDS 60

struct connection {
    int fd;
    handler *answer;
};

void append(struct buffer *buffer, const char *format, ...)
{
    for (;;) {
        size_t room = buffer->size - buffer->used;
        va_list arguments;
        va_start(arguments, format);
        int length = vsnprintf(buffer->text == NULL ? NULL : buffer->text + buffer->used, room, format, arguments);
        va_end(arguments);
        if (length < 0)
            abort();
        if ((size_t)length < room) {
            buffer->used += (size_t)length;
            return;
        }
        buffer->size = buffer->size * 2 + (size_t)length + 256;
        buffer->text = realloc(buffer->text, buffer->size);
        if (buffer->text == NULL)
            abort();
    }
}

void append_string(struct buffer *buffer, const char *text)
{
    append(buffer, "\"");
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            append(buffer, "\\%c", c);
        else if (c < 0x20)
            append(buffer, "\\u%04x", c);
        else
            append(buffer, "%c", c);
    }
    append(buffer, "\"");
}

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 411:
        return "Length Required";
    case 413:
        return "Content Too Large";
    case 431:
        return "Request Header Fields Too Large";
    default:
        return "Internal Server Error";
    }
}

static bool send_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        text += sent;
        length -= (size_t)sent;
    }
    return true;
}

static bool respond(int fd, int status, const struct buffer *body, bool keep)
{
    struct buffer head = {0};

    append(&head, "HTTP/1.1 %d %s\r\nserver: uvicorn\r\ncontent-length: %zu\r\n", status, reason(status), body->used);
    if (body->used > 0)
        append(&head, "content-type: application/json\r\n");
    append(&head, "connection: %s\r\n\r\n", keep ? "keep-alive" : "close");
    bool sent = send_all(fd, head.text, head.used) && (body->used == 0 || send_all(fd, body->text, body->used));
    free(head.text);
    return sent;
}

static bool refuse(int fd, int status)
{
    struct buffer body = {0};

    append(&body, "{\"detail\":\"%s\"}", reason(status));
    respond(fd, status, &body, false);
    free(body.text);
    return false;
}

/* The value of a header in the head, trimmed, into out; false when absent. */
static bool header(const char *head, const char *name, char *out, size_t size)
{
    size_t width = strlen(name);

    for (const char *line = strstr(head, "\r\n"); line != NULL && line[2] != '\0'; line = strstr(line + 2, "\r\n")) {
        const char *start = line + 2;
        if (strncasecmp(start, name, width) != 0 || start[width] != ':')
            continue;
        start += width + 1;
        start += strspn(start, " \t");
        size_t length = strcspn(start, "\r");
        while (length > 0 && (start[length - 1] == ' ' || start[length - 1] == '\t'))
            length--;
        if (length >= size)
            return false;
        memcpy(out, start, length);
        out[length] = '\0';
        return true;
    }
    return false;
}

static bool parse_line(const char *head, struct request *request)
{
    size_t method = strcspn(head, " \r\n");

    if (method == 0 || method >= sizeof request->method || head[method] != ' ')
        return false;
    memcpy(request->method, head, method);
    request->method[method] = '\0';
    const char *path = head + method + 1;
    size_t length = strcspn(path, "? \r\n");
    if (length == 0 || length >= sizeof request->path || path[0] != '/')
        return false;
    memcpy(request->path, path, length);
    request->path[length] = '\0';
    path += strcspn(path, " \r\n");
    return strncmp(path, " HTTP/1.", 8) == 0;
}

/* One request of a connection; pending holds what was read beyond the last one. False when the connection is done with. */
static bool serve_one(int fd, handler *answer, struct buffer *pending)
{
    struct request request = {.body = ""};
    char value[64], *end;
    uint64_t length = 0;

    while (pending->text == NULL || (end = strstr(pending->text, "\r\n\r\n")) == NULL) {
        char part[4096];
        if (pending->used >= HEAD_MAX)
            return refuse(fd, 431);
        ssize_t got = recv(fd, part, sizeof part, 0);
        if (got <= 0 || memchr(part, '\0', (size_t)got) != NULL)
            return false;
        append(pending, "%.*s", (int)got, part);
    }
    size_t head = (size_t)(end - pending->text) + 4;
    end[2] = '\0';
    if (!parse_line(pending->text, &request))
        return refuse(fd, 400);
    bool chunked = header(pending->text, "transfer-encoding", value, sizeof value);
    if (chunked)
        return refuse(fd, 411);
    if (header(pending->text, "content-length", value, sizeof value) && !sim_number(value, &length))
        return refuse(fd, 400);
    if (length > BODY_MAX)
        return refuse(fd, 413);
    bool keep = !(header(pending->text, "connection", value, sizeof value) && strcasecmp(value, "close") == 0);
    if (header(pending->text, "expect", value, sizeof value) && !send_all(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25))
        return false;
    while (pending->used < head + length) {
        char part[16384];
        ssize_t got = recv(fd, part, sizeof part, 0);
        if (got <= 0 || memchr(part, '\0', (size_t)got) != NULL)
            return false;
        append(pending, "%.*s", (int)got, part);
    }
    char *body = strndup(pending->text + head, length);
    if (body == NULL)
        return false;
    request.body = body;
    request.length = length;
    struct buffer result = {0};
    int status = answer(&request, &result);
    bool sent = respond(fd, status, &result, keep);
    free(result.text);
    free(body);
    pending->used -= head + length;
    memmove(pending->text, pending->text + head + length, pending->used + 1);
    return sent && keep;
}

static void *serve_connection(void *argument)
{
    struct connection connection = *(struct connection *)argument;
    struct buffer pending = {0};

    free(argument);
    while (serve_one(connection.fd, connection.answer, &pending))
        continue;
    free(pending.text);
    close(connection.fd);
    return NULL;
}

int listen_on(const char *host, unsigned int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 128) != 0) {
        fprintf(stderr, "ERROR: cannot listen on %s:%u: %s\n", host, port, strerror(errno));
        return -1;
    }
    return fd;
}

_Noreturn void serve(int listener, handler *answer)
{
    struct timeval idle = {.tv_sec = IDLE_SECONDS};
    pthread_attr_t detached;

    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 256 * 1024);
    for (;;) {
        pthread_t thread;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        struct connection *connection = malloc(sizeof *connection);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &idle, sizeof idle);
        if (connection != NULL)
            *connection = (struct connection){fd, answer};
        if (connection == NULL || pthread_create(&thread, &detached, serve_connection, connection) != 0) {
            free(connection);
            close(fd);
        }
    }
}
