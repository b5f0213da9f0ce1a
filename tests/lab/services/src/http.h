/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A small HTTP/1.1 server: a thread for each connection, keep-alive, bodies with Content-Length.
 */
#ifndef LAB_HTTP_H
#define LAB_HTTP_H

#include <stddef.h>

struct buffer {
    char *text;
    size_t used, size;
};

struct request {
    char method[16];
    char path[256];             /* without the query */
    const char *body;           /* terminated */
    size_t length;
};

/* Answers a request: writes the JSON body (may be empty) and returns the status. */
typedef int handler(const struct request *request, struct buffer *body);

void append(struct buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends text as a JSON string, with its quotes. */
void append_string(struct buffer *buffer, const char *text);

/* Binds host:port (an IPv4 address); the listening descriptor, or -1 with a message on stderr. */
int listen_on(const char *host, unsigned int port);

/* Serves for ever. */
_Noreturn void serve(int listener, handler *answer);

#endif
