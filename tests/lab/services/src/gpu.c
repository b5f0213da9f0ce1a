/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "gpu.h"

#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The answer (caller frees), or NULL after a message. */
static char *ask(const char *request)
{
    char text[256];
    char *answer = sim_ask(request);

    if (answer == NULL) {
        fprintf(stderr, "CUDA error: no CUDA-capable device is detected (%s)\n", strerror(errno));
        return NULL;
    }
    if (strncmp(answer, "ok", 2) == 0)
        return answer;
    sim_value(answer, "text", text, sizeof text);
    fprintf(stderr, "CUDA error: %s\n", text);
    free(answer);
    return NULL;
}

bool gpu_memory(uint64_t *free_bytes, uint64_t *total, uint64_t *available)
{
    char *answer = ask("meminfo\n");

    if (answer == NULL)
        return false;
    *free_bytes = sim_value_number(answer, "free", 0);
    *total = sim_value_number(answer, "total", 0);
    *available = sim_value_number(answer, "available", 0);
    free(answer);
    return true;
}

bool gpu_context(uint64_t *bytes)
{
    char *answer = ask("context device=0\n");

    if (answer == NULL)
        return false;
    *bytes = sim_value_number(answer, "bytes", 0);
    free(answer);
    return true;
}

bool gpu_alloc(uint64_t bytes)
{
    char request[64];

    snprintf(request, sizeof request, "alloc device=0 bytes=%llu\n", (unsigned long long)bytes);
    char *answer = ask(request);
    free(answer);
    return answer != NULL;
}
