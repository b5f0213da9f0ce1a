/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What somebody left running on the second Spark: llama.cpp's llama-server by its command line, its health and its GPU
 * memory (the model's file and a context). It completes nothing.
 */
#include "gpu.h"
#include "http.h"
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int answer(const struct request *request, struct buffer *body)
{
    if (strcmp(request->path, "/health") == 0) {
        append(body, "{\"status\":\"ok\"}");
        return 200;
    }
    append(body, "{\"error\":{\"code\":404,\"message\":\"File Not Found\",\"type\":\"not_found_error\"}}");
    return 404;
}

int main(int argc, char **argv)
{
    const char *model = NULL, *host = "127.0.0.1";
    uint64_t port = 8080, context;
    struct stat file;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-m") == 0)
            model = argv[i + 1];
        else if (strcmp(argv[i], "--host") == 0)
            host = argv[i + 1];
        else if (strcmp(argv[i], "--port") == 0 && (!sim_number(argv[i + 1], &port) || port == 0 || port > 65535))
            model = NULL;
    }
    if (model == NULL) {
        fputs("usage: llama-server -m MODEL.gguf [--host ADDRESS] [--port PORT] [-ngl LAYERS]\n", stderr);
        return 2;
    }
    if (stat(model, &file) != 0 || file.st_size == 0) {
        fprintf(stderr, "error loading model: %s: %s\n", model, strerror(errno));
        return 1;
    }
    if (!gpu_context(&context) || !gpu_alloc((uint64_t)file.st_size))
        return 1;
    int listener = listen_on(host, (unsigned int)port);
    if (listener < 0)
        return 1;
    fprintf(stderr, "main: server is listening on http://%s:%llu\n", host, (unsigned long long)port);
    serve(listener, answer);
}
