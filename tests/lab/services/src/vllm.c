/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The embeddings server of the lab's second Spark: vLLM's command line, processes and API, small vectors that are really
 * computed, and the memory of a real one from the simulated driver. As with vLLM, the API server is one process and
 * VLLM::EngineCore, which holds the GPU's memory, another.
 */
#include "embedding.h"
#include "gpu.h"
#include "http.h"
#include "json.h"
#include "sim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ENGINE_NAME "VLLM::EngineCore"
#define ENGINE_OPTION "--engine-core"
#define INPUTS_MAX 2048
#define TERMINATED 143          /* 128 + SIGTERM, as a vLLM that docker stop ends */

static const char *model;
static pid_t engine;

/* ---------------------------------------------------------------- the engine's process */

/* "0.0975" into parts of 10000; false for anything but a decimal between 0 and 1. */
static bool fraction(const char *text, uint64_t *parts)
{
    uint64_t whole;
    char number[24];
    const char *dot = strchr(text, '.');
    size_t decimals = dot == NULL ? 0 : strlen(dot + 1);

    if (decimals > 4 || strlen(text) > 8)
        return false;
    size_t length = dot == NULL ? strlen(text) : (size_t)(dot - text);
    snprintf(number, sizeof number, "%.*s%s%.*s", (int)length, text, dot == NULL ? "" : dot + 1, (int)(4 - decimals), "0000");
    return sim_number(number, &whole) && whole > 0 && whole <= 10000 && (*parts = whole, true);
}

/* Takes what --gpu-memory-utilization stands for, says so through ready, and waits for its end. */
static int run_engine(const char *utilization, int ready)
{
    uint64_t parts, free_bytes, total, available, context;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!fraction(utilization, &parts) || !gpu_context(&context) || !gpu_memory(&free_bytes, &total, &available))
        return 1;
    uint64_t wanted = total * parts / 10000;
    if (wanted > available + context) {
        fprintf(stderr,
                "ValueError: Free memory on device cuda:0 (%.2f/%.2f GiB) on startup is less than desired GPU memory utilization (%s, %.2f GiB). "
                "Decrease GPU memory utilization or reduce GPU memory used by other processes.\n",
                (double)available / 1073741824.0, (double)total / 1073741824.0, utilization, (double)wanted / 1073741824.0);
        return 1;
    }
    if (wanted > context && !gpu_alloc((wanted - context) / (2 * MIB) * (2 * MIB)))
        return 1;
    if (write(ready, "+", 1) != 1)
        return 1;
    for (;;)
        pause();
}

static bool start_engine(const char *utilization)
{
    int ends[2];
    char ready[16], answer;

    if (pipe(ends) != 0)
        return false;
    engine = fork();
    if (engine == 0) {
        snprintf(ready, sizeof ready, "%d", ends[1]);
        close(ends[0]);
        char *const arguments[] = {ENGINE_NAME, ENGINE_OPTION, (char *)(uintptr_t)utilization, ready, NULL};
        execv("/proc/self/exe", arguments);
        _exit(127);
    }
    close(ends[1]);
    bool started = engine > 0 && read(ends[0], &answer, 1) == 1;
    close(ends[0]);
    return started;
}

/* ---------------------------------------------------------------- the API */

static int fail(struct buffer *body, int status, const char *type, const char *parameter, const char *message)
{
    append(body, "{\"error\":{\"message\":");
    append_string(body, message);
    append(body, ",\"type\":\"%s\",\"param\":", type);
    if (parameter == NULL)
        append(body, "null");
    else
        append_string(body, parameter);
    append(body, ",\"code\":%d}}", status);
    return status;
}

static void append_vector(struct buffer *body, const float *vector)
{
    append(body, "[");
    for (size_t i = 0; i < DIMENSIONS; i++)
        append(body, i == 0 ? "%.9g" : ",%.9g", (double)vector[i]);
    append(body, "]");
}

static int answer_embeddings(const struct request *request, struct buffer *body)
{
    struct strings names, inputs;
    size_t tokens = 0;
    int status = 200;

    bool valid = json_strings(request->body, "model", &names);
    valid = json_strings(request->body, "input", &inputs) && valid;
    if (!valid) {
        status = fail(body, 400, "BadRequestError", NULL, "The body is not one JSON object.");
    } else if (names.other || names.count > 1 || (names.count == 1 && strcmp(names.item[0], model) != 0)) {
        char message[300];
        snprintf(message, sizeof message, "The model `%.200s` does not exist.", names.count == 1 ? names.item[0] : "?");
        status = fail(body, 404, "NotFoundError", "model", message);
    } else if (inputs.other || inputs.count == 0 || inputs.count > INPUTS_MAX) {
        status = fail(body, 400, "BadRequestError", "input", "input must be a string or a list of 1 to 2048 strings.");
    } else {
        append(body, "{\"id\":\"embd-%08x%08x\",\"object\":\"list\",\"created\":%lld,\"model\":", (unsigned)rand(), (unsigned)rand(), (long long)time(NULL));
        append_string(body, model);
        append(body, ",\"data\":[");
        for (size_t i = 0; i < inputs.count; i++) {
            float vector[DIMENSIONS];
            tokens += embed(inputs.item[i], vector);
            append(body, "%s{\"index\":%zu,\"object\":\"embedding\",\"embedding\":", i == 0 ? "" : ",", i);
            append_vector(body, vector);
            append(body, "}");
        }
        append(body, "],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":0,\"prompt_tokens_details\":null}}", tokens, tokens);
    }
    free_strings(&names);
    free_strings(&inputs);
    return status;
}

static int answer(const struct request *request, struct buffer *body)
{
    bool get = strcmp(request->method, "GET") == 0, post = strcmp(request->method, "POST") == 0;

    if (strcmp(request->path, "/v1/embeddings") == 0 && post)
        return answer_embeddings(request, body);
    if (strcmp(request->path, "/health") == 0 && get)
        return 200;
    if (strcmp(request->path, "/version") == 0 && get) {
        append(body, "{\"version\":\"0.20.1\"}");
        return 200;
    }
    if (strcmp(request->path, "/v1/models") == 0 && get) {
        append(body, "{\"object\":\"list\",\"data\":[{\"id\":");
        append_string(body, model);
        append(body, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"max_model_len\":8192}]}", (long long)time(NULL));
        return 200;
    }
    static const char *const known[] = {"/v1/embeddings", "/health", "/version", "/v1/models"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(request->path, known[i]) == 0) {
            append(body, "{\"detail\":\"Method Not Allowed\"}");
            return 405;
        }
    }
    append(body, "{\"detail\":\"Not Found\"}");
    return 404;
}

/* ---------------------------------------------------------------- start and stop */

static void on_term(int number)
{
    (void)number;
    signal(SIGCHLD, SIG_IGN);   /* the engine's end is ours now, and no failure */
    if (engine > 0)
        kill(engine, SIGKILL);
    _exit(TERMINATED);
}

static void on_child(int number)
{
    static const char text[] = "ERROR: EngineCore has died.\n";

    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(1);
    _exit(1);
}

static void usage(void)
{
    fputs("usage: vllm serve MODEL [--host ADDRESS] [--port PORT] [--gpu-memory-utilization FRACTION]\n", stderr);
    exit(2);
}

int main(int argc, char **argv)
{
    const char *host = "0.0.0.0", *utilization = "0.9";
    uint64_t port = 8000, ready;

    if (argc == 4 && strcmp(argv[1], ENGINE_OPTION) == 0 && sim_number(argv[3], &ready))
        return run_engine(argv[2], (int)ready);
    if (argc < 3 || strcmp(argv[1], "serve") != 0)
        usage();
    model = argv[2];
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 >= argc)
            usage();
        if (strcmp(argv[i], "--host") == 0)
            host = argv[i + 1];
        else if (strcmp(argv[i], "--port") == 0) {
            if (!sim_number(argv[i + 1], &port) || port == 0 || port > 65535)
                usage();
        } else if (strcmp(argv[i], "--gpu-memory-utilization") == 0) {
            uint64_t parts;
            if (!fraction(argv[i + 1], &parts))
                usage();
            utilization = argv[i + 1];
        } else
            usage();
    }
    struct sigaction term = {.sa_handler = on_term}, child = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGTERM, &term, NULL);    /* pid 1 of a container has no default action */
    sigaction(SIGINT, &term, NULL);
    fprintf(stderr, "INFO: starting %s for %s\n", ENGINE_NAME, model);
    if (!start_engine(utilization)) {
        fputs("RuntimeError: Engine core initialization failed. See root cause above.\n", stderr);
        return 1;
    }
    sigaction(SIGCHLD, &child, NULL);
    if (waitpid(engine, NULL, WNOHANG) != 0)
        on_child(SIGCHLD);
    int listener = listen_on(host, (unsigned int)port);
    if (listener < 0)
        return 1;
    fprintf(stderr, "INFO: Uvicorn running on http://%s:%llu\n", host, (unsigned long long)port);
    serve(listener, answer);
}
