/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gb10-simd: the driver of a simulated GB10. It holds the memory of its clients, as the kernel driver of a GB10 does, so
 * that it shows in neither their RSS nor their cgroup, and it is the one state that NVML, nvidia-smi and CUDA's stand-in
 * ask. Protocol and knobs: ../README.md.
 *
 * The memory is held in full pipes (1 MiB each): pages of the kernel, charged to this host's pool, in no process's RSS and
 * in none of AnonPages, Cached and Slab, which is where a GB10's allocations are not to be found either. Where pipes of
 * that size are refused, anonymous memory of the daemon is used.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GRANULE (2 * MIB)       /* CUDA allocates in units of 2 MiB */
#define STEP (64 * MIB)         /* how much is taken between two looks at the pool */
#define DEVICES 2
#define CONNECTIONS 512

enum cuda {
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
};

enum nvml {
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
};

enum kind { COMPUTE = 1, GRAPHICS = 2 };

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* ---------------------------------------------------------------- knobs */

struct knob {
    const char *name;
    const char *usual;          /* built-in default */
    const char *choices;        /* "a|b", or one of the forms below in angle brackets */
    char value[256];
    char baseline[256];         /* what reset goes back to: default, then configuration file, then --set */
};

static struct knob knobs[] = {
    {.name = "hang", .usual = "off", .choices = "off|all|processes"},
    {.name = "hang_unkillable", .usual = "off", .choices = "off|on"},
    {.name = "unnamed", .usual = "none", .choices = "<pids>"},
    {.name = "unsized", .usual = "none", .choices = "<pids>"},
    {.name = "retain", .usual = "0", .choices = "<seconds>"},
    {.name = "retain_listed", .usual = "off", .choices = "off|on"},
    {.name = "pool", .usual = "0", .choices = "<size>"},
    {.name = "gpus", .usual = "1", .choices = "0|1|2"},
    {.name = "second_gpu", .usual = "gb10", .choices = "gb10|discrete"},
    {.name = "driver", .usual = "loaded", .choices = "loaded|unloaded"},
    {.name = "version", .usual = "580.142", .choices = "<version>"},
    {.name = "cuda", .usual = "13.0", .choices = "<version>"},
    {.name = "library", .usual = "present", .choices = "present|missing"},
    {.name = "nvidia_smi", .usual = "present", .choices = "present|missing"},
    {.name = "mismatch", .usual = "off", .choices = "off|on"},
    {.name = "no_permission", .usual = "off", .choices = "off|users|all"},
    {.name = "lost", .usual = "off", .choices = "off|on"},
    {.name = "memory_info", .usual = "not_supported", .choices = "not_supported|zero|meminfo"},
    {.name = "persistence", .usual = "on", .choices = "off|on"},
    {.name = "utilization", .usual = "0", .choices = "<number>"},
    {.name = "temperature", .usual = "42", .choices = "<number>"},
    {.name = "power", .usual = "4", .choices = "<number>"},
    {.name = "context_bytes", .usual = "64MiB", .choices = "<size>"},
    {.name = "context_margin", .usual = "192MiB", .choices = "<size>"},
    {.name = "alloc_floor", .usual = "64MiB", .choices = "<size>"},
};

#define KNOBS (sizeof knobs / sizeof knobs[0])

static struct knob *find_knob(const char *name)
{
    for (size_t i = 0; i < KNOBS; i++)
        if (strcmp(knobs[i].name, name) == 0)
            return &knobs[i];
    return NULL;
}

static const char *knob(const char *name)
{
    return find_knob(name)->value;
}

static bool knob_is(const char *name, const char *value)
{
    return strcmp(knob(name), value) == 0;
}

static uint64_t knob_size(const char *name)
{
    uint64_t bytes = 0;

    sim_size(knob(name), &bytes);
    return bytes;
}

static bool chosen(const char *choices, const char *value)
{
    size_t length = strlen(value);

    for (const char *choice = choices; *choice != '\0';) {
        size_t width = strcspn(choice, "|");
        if (width == length && strncmp(choice, value, width) == 0)
            return true;
        choice += width + (choice[width] == '|');
    }
    return false;
}

static bool pid_list(const char *value)
{
    if (strcmp(value, "none") == 0 || strcmp(value, "all") == 0)
        return true;
    return value[0] != '\0' && strspn(value, "0123456789,") == strlen(value);
}

static bool acceptable(const struct knob *target, const char *value)
{
    uint64_t number;

    if (strlen(value) >= sizeof target->value)
        return false;
    if (target->choices[0] != '<')
        return chosen(target->choices, value);
    if (strcmp(target->choices, "<pids>") == 0)
        return pid_list(value);
    if (strcmp(target->choices, "<seconds>") == 0)
        return strcmp(value, "forever") == 0 || sim_number(value, &number);
    if (strcmp(target->choices, "<size>") == 0)
        return sim_size(value, &number);
    if (strcmp(target->choices, "<number>") == 0)
        return sim_number(value, &number) && number < 100000;
    return value[0] != '\0' && strlen(value) < 32 && strspn(value, "0123456789.") == strlen(value);
}

/* Whether pid is named in a <pids> knob. */
static bool knob_has_pid(const char *name, pid_t pid)
{
    const char *value = knob(name);
    char wanted[32];
    size_t length = (size_t)snprintf(wanted, sizeof wanted, "%d", (int)pid);

    if (strcmp(value, "all") == 0)
        return true;
    for (; *value != '\0'; value += strcspn(value, ","), value += *value == ',')
        if (strcspn(value, ",") == length && strncmp(value, wanted, length) == 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- the host's pool */

static const char *meminfo_path = "/proc/meminfo";

struct pool {
    uint64_t total, free, available;
};

static uint64_t meminfo_field(const char *text, const char *name)
{
    size_t length = strlen(name);
    char number[24];

    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        uint64_t kib;
        if (strncmp(line, name, length) != 0 || line[length] != ':')
            continue;
        const char *start = line + length + 1;
        start += strspn(start, " \t");
        size_t width = strspn(start, "0123456789");
        if (width == 0 || width >= sizeof number)
            return 0;
        memcpy(number, start, width);
        number[width] = '\0';
        return sim_number(number, &kib) ? kib * KIB : 0;
    }
    return 0;
}

static bool read_pool(struct pool *pool)
{
    char text[8192];
    size_t used = 0;
    int fd = open(meminfo_path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    for (;;) {
        ssize_t got = read(fd, text + used, sizeof text - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    text[used] = '\0';
    pool->total = meminfo_field(text, "MemTotal");
    pool->free = meminfo_field(text, "MemFree");
    pool->available = meminfo_field(text, "MemAvailable");
    return pool->total > 0;
}

/* ---------------------------------------------------------------- held memory */

enum backing { BACKING_AUTO, BACKING_KERNEL, BACKING_ANONYMOUS };

static enum backing backing = BACKING_AUTO;

struct held {
    uint64_t bytes;
    int *pipes;
    size_t count;
    void *mapping;
};

static void let_go(struct held *held)
{
    for (size_t i = 0; i < held->count; i++)
        close(held->pipes[i]);
    free(held->pipes);
    if (held->mapping != NULL)
        munmap(held->mapping, held->bytes);
    memset(held, 0, sizeof *held);
}

/* The pool must never run dry under the daemon: that would call the kernel's OOM killer instead of failing cleanly. */
static bool affordable(uint64_t bytes)
{
    struct pool pool;

    return read_pool(&pool) && bytes <= pool.available && pool.available - bytes >= knob_size("alloc_floor");
}

static int full_pipe(void)
{
    static char page[MIB];
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return -1;
    if (fcntl(ends[1], F_SETPIPE_SZ, (int)MIB) != (int)MIB || write(ends[1], page, MIB) != (ssize_t)MIB) {
        close(ends[0]);
        close(ends[1]);
        return -1;
    }
    close(ends[0]);             /* the pages stay until the last end is closed */
    return ends[1];
}

static bool hold_in_pipes(struct held *held, uint64_t bytes)
{
    size_t wanted = (size_t)(bytes / MIB);

    held->pipes = calloc(wanted, sizeof *held->pipes);
    if (held->pipes == NULL)
        return false;
    held->bytes = bytes;
    while (held->count < wanted) {
        if (held->count % (STEP / MIB) == 0 && !affordable((wanted - held->count) * MIB))
            break;
        int fd = full_pipe();
        if (fd < 0)
            break;
        held->pipes[held->count++] = fd;
    }
    if (held->count == wanted)
        return true;
    let_go(held);
    return false;
}

static bool hold_in_mapping(struct held *held, uint64_t bytes)
{
    char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mapping == MAP_FAILED)
        return false;
    held->mapping = mapping;
    held->bytes = bytes;
    for (uint64_t done = 0; done < bytes; done += STEP) {
        uint64_t part = bytes - done < STEP ? bytes - done : STEP;
        if (!affordable(bytes - done)) {
            let_go(held);
            return false;
        }
        memset(mapping + done, 0x5a, part);
    }
    if (mlock(mapping, bytes) != 0)
        say("held memory is not locked and may be swapped out: %s", strerror(errno));
    return true;
}

static bool hold(struct held *held, uint64_t bytes)
{
    memset(held, 0, sizeof *held);
    if (bytes == 0)
        return true;
    if (!affordable(bytes))
        return false;
    if (backing != BACKING_ANONYMOUS && hold_in_pipes(held, bytes))
        return true;
    return backing != BACKING_KERNEL && hold_in_mapping(held, bytes);
}

static uint64_t round_up(uint64_t bytes)
{
    return bytes > UINT64_MAX - GRANULE ? bytes : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* ---------------------------------------------------------------- clients */

struct allocation {
    struct allocation *next;
    uint64_t id;
    int device;
    enum kind kind;
    bool context;
    struct held held;
};

struct client {
    struct client *next;
    pid_t pid;
    int pidfd;                  /* -1 once the process has ended */
    double ended;               /* monotonic seconds */
    struct allocation *allocations;
};

static struct client *clients;
static struct held pool_held;
static uint64_t next_id = 1;

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static bool pidfd_ended(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};

    return poll(&entry, 1, 0) == 1;
}

static struct client *find_client(pid_t pid)
{
    for (struct client *client = clients; client != NULL; client = client->next)
        if (client->pid == pid && client->pidfd >= 0)
            return client;
    return NULL;
}

static struct client *get_client(pid_t pid)
{
    struct client *client = find_client(pid);

    if (client != NULL)
        return client;
    int pidfd = open_pidfd(pid);
    if (pidfd < 0)
        return NULL;
    client = calloc(1, sizeof *client);
    if (client == NULL || pidfd_ended(pidfd)) {
        free(client);
        close(pidfd);
        return NULL;
    }
    client->pid = pid;
    client->pidfd = pidfd;
    client->next = clients;
    clients = client;
    return client;
}

static void release_allocations(struct client *client)
{
    while (client->allocations != NULL) {
        struct allocation *first = client->allocations;
        client->allocations = first->next;
        let_go(&first->held);
        free(first);
    }
}

static uint64_t client_bytes(const struct client *client, int device, int *kinds)
{
    uint64_t bytes = 0;

    *kinds = 0;
    for (const struct allocation *item = client->allocations; item != NULL; item = item->next) {
        if (device >= 0 && item->device != device)
            continue;
        bytes += item->held.bytes;
        *kinds |= (int)item->kind;
    }
    return bytes;
}

static bool due(const struct client *client)
{
    uint64_t seconds;

    if (client->pidfd >= 0)
        return false;
    if (!sim_number(knob("retain"), &seconds))
        return false;           /* forever */
    return now() - client->ended >= (double)seconds;
}

/* Milliseconds until the next retained memory is due, -1 for none. */
static int next_due(void)
{
    double soonest = -1;
    uint64_t seconds;

    if (!sim_number(knob("retain"), &seconds))
        return -1;
    for (const struct client *client = clients; client != NULL; client = client->next) {
        if (client->pidfd >= 0)
            continue;
        double left = client->ended + (double)seconds - now();
        if (left < 0)
            left = 0;
        if (soonest < 0 || left < soonest)
            soonest = left;
    }
    return soonest < 0 ? -1 : (int)(soonest * 1000) + 1;
}

static void settle_clients(void)
{
    for (struct client **link = &clients; *link != NULL;) {
        struct client *client = *link;
        if (client->pidfd >= 0 && pidfd_ended(client->pidfd)) {
            close(client->pidfd);
            client->pidfd = -1;
            client->ended = now();
        }
        if (due(client) || (client->pidfd < 0 && client->allocations == NULL)) {
            int kinds;
            uint64_t bytes = client_bytes(client, -1, &kinds);
            if (bytes > 0)
                say("pid %d has ended: %llu MiB released", (int)client->pid, (unsigned long long)(bytes / MIB));
            release_allocations(client);
            *link = client->next;
            free(client);
            continue;
        }
        link = &client->next;
    }
}

/* ---------------------------------------------------------------- frozen processes (what no signal ends) */

static bool freezer_path(char *out, size_t size)
{
    char line[1024];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");

    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL || strncmp(controllers, ":freezer:", 9) != 0)
            continue;
        path[strcspn(path, "\n")] = '\0';
        int length = snprintf(out, size, "/sys/fs/cgroup/freezer%s/gb10-sim", strcmp(path + 1, "/") == 0 ? "" : path + 1);
        found = length > 0 && (size_t)length < size;
    }
    fclose(file);
    return found;
}

static bool write_file(const char *directory, const char *name, const char *text)
{
    char path[1200];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int saved = errno;
    close(fd);
    errno = saved;
    return written;
}

static bool freeze_process(pid_t pid)
{
    char directory[1100], number[32];

    if (!freezer_path(directory, sizeof directory)) {
        errno = ENOTSUP;
        return false;
    }
    if (mkdir(directory, 0755) != 0 && errno != EEXIST)
        return false;
    snprintf(number, sizeof number, "%d", (int)pid);
    return write_file(directory, "cgroup.procs", number) && write_file(directory, "freezer.state", "FROZEN");
}

static bool hang_froze;         /* processes were frozen because the driver hung, not because somebody asked for it */

static void thaw_all(void)
{
    char directory[1100], path[1200], pid[32];

    hang_froze = false;
    if (!freezer_path(directory, sizeof directory) || access(directory, F_OK) != 0)
        return;
    write_file(directory, "freezer.state", "THAWED");
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (fgets(pid, sizeof pid, file) != NULL) {
        pid[strcspn(pid, "\n")] = '\0';
        if (!write_file(directory, "../cgroup.procs", pid) && errno != ESRCH)
            say("pid %s stays in %s: %s", pid, directory, strerror(errno));
    }
    fclose(file);
    rmdir(directory);
}

/* ---------------------------------------------------------------- applying knobs */

static const char *library_file, *smi_file, *proc_directory;
static bool proc_mounted;

static void put_file(const char *path, bool present)
{
    char away[1024];

    if (path == NULL)
        return;
    snprintf(away, sizeof away, "%s.away", path);
    const char *from = present ? away : path, *to = present ? path : away;
    if (faccessat(AT_FDCWD, from, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && rename(from, to) != 0)
        say("cannot rename %s to %s: %s", from, to, strerror(errno));
}

static void put_proc_file(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put_proc_file(const char *name, const char *format, ...)
{
    char path[1024];
    va_list arguments;

    snprintf(path, sizeof path, "%s/nvidia/%s", proc_directory, name);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        say("%s: %s", path, strerror(errno));
        return;
    }
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    if (fclose(file) != 0)
        say("%s: %s", path, strerror(errno));
}

/* /proc/driver/nvidia, as a loaded kernel module shows it. Nothing can be made in /proc itself: a tmpfs goes over it. */
static void put_proc(bool loaded)
{
    char path[1024];
    uint64_t major = 0;
    char number[16];

    if (proc_directory == NULL)
        return;
    if (!proc_mounted && strncmp(proc_directory, "/proc/", 6) == 0) {
        if (mount("gb10-sim", proc_directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64k") != 0) {
            say("%s: %s", proc_directory, strerror(errno));
            proc_directory = NULL;
            return;
        }
        proc_mounted = true;
    }
    snprintf(path, sizeof path, "%s/nvidia", proc_directory);
    if (!loaded) {
        static const char *const names[] = {"version", "params"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            snprintf(path, sizeof path, "%s/nvidia/%s", proc_directory, names[i]);
            unlink(path);
        }
        snprintf(path, sizeof path, "%s/nvidia", proc_directory);
        rmdir(path);
        return;
    }
    if (mkdir(path, 0755) != 0 && errno != EEXIST) {
        say("%s: %s", path, strerror(errno));
        return;
    }
    put_proc_file("version",
                  "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  %s  Release Build  (dvs-builder@U22-I3-AM02-24-3)\n"
                  "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
                  knob("version"));
    snprintf(number, sizeof number, "%.*s", (int)strcspn(knob("version"), "."), knob("version"));
    /* Pools of freed pages came with 590. */
    put_proc_file("params", "MemoryPoolSize: 0\n%sCoherentGPUMemoryMode: \"\"\n",
                  sim_number(number, &major) && major >= 590 ? "EnableSystemMemoryPools: 529\n" : "");
}

static bool apply_knobs(void)
{
    uint64_t wanted = round_up(knob_size("pool"));

    put_file(library_file, knob_is("library", "present"));
    put_file(smi_file, knob_is("nvidia_smi", "present"));
    put_proc(knob_is("driver", "loaded"));
    if (hang_froze && knob_is("hang", "off"))
        thaw_all();
    if (wanted == pool_held.bytes)
        return true;
    let_go(&pool_held);
    if (hold(&pool_held, wanted))
        return true;
    memcpy(find_knob("pool")->value, "0", 2);   /* what is held now */
    return false;
}

/* ---------------------------------------------------------------- connections */

struct connection {
    int fd;
    bool parked;                /* waits in a driver that hangs */
    pid_t pid;
    uid_t uid;
    size_t used;
    char request[SIM_REQUEST_MAX];
};

static struct connection *connections[CONNECTIONS];
static size_t connection_count;

struct answer {
    char *text;
    size_t used, size;
};

static void add(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct answer *answer, const char *format, ...)
{
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        int length = vsnprintf(answer->text + answer->used, answer->size - answer->used, format, arguments);
        va_end(arguments);
        if (length < 0)
            return;
        if ((size_t)length < answer->size - answer->used) {
            answer->used += (size_t)length;
            return;
        }
        char *larger = realloc(answer->text, answer->size * 2 + (size_t)length);
        if (larger == NULL) {
            say("out of memory for an answer");
            return;
        }
        answer->text = larger;
        answer->size = answer->size * 2 + (size_t)length;
    }
}

static void add_text(struct answer *answer, const char *key, const char *text)
{
    char quoted[1024];

    sim_quote(quoted, sizeof quoted, text);
    add(answer, " %s=%s", key, quoted);
}

static void cuda_error(struct answer *answer, enum cuda code, const char *name, const char *text)
{
    add(answer, "error cuda=%d name=%s", (int)code, name);
    add_text(answer, "text", text);
    add(answer, "\n");
}

static void plain_error(struct answer *answer, const char *text)
{
    add(answer, "error");
    add_text(answer, "text", text);
    add(answer, "\n");
}

static int gpu_count(void)
{
    return knob("gpus")[0] - '0';
}

static bool discrete(int device)
{
    return device == 1 && knob_is("second_gpu", "discrete");
}

/* The same on every start of the same host, different on every host and device. */
static void device_uuid(int device, char *out, size_t size)
{
    uint64_t hash[2] = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4)};
    char seed[300] = "";

    if (gethostname(seed, 256) != 0)
        seed[0] = '\0';
    seed[255] = '\0';
    size_t length = strlen(seed);
    snprintf(seed + length, sizeof seed - length, "/%d", device);
    for (const char *c = seed; *c != '\0'; c++)
        for (int i = 0; i < 2; i++)
            hash[i] = (hash[i] ^ (unsigned char)*c) * UINT64_C(0x100000001b3) + (uint64_t)i;
    snprintf(out, size, "GPU-%08x-%04x-%04x-%04x-%04x%08x", (unsigned)(hash[0] >> 32), (unsigned)(hash[0] >> 16 & 0xffff),
             (unsigned)(hash[0] & 0xffff), (unsigned)(hash[1] >> 48), (unsigned)(hash[1] >> 32 & 0xffff), (unsigned)(hash[1] & 0xffffffff));
}

static bool same_pid_namespace(pid_t pid)
{
    struct stat own, other;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    if (stat("/proc/self/ns/pid", &own) != 0 || stat(path, &other) != 0)
        return true;
    return own.st_ino == other.st_ino && own.st_dev == other.st_dev;
}

/* Whether the driver refuses this caller, as a code of NVML; 0 for no. */
static int refusal(const struct connection *connection)
{
    if (knob_is("driver", "unloaded"))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (knob_is("mismatch", "on"))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (knob_is("no_permission", "all") || (knob_is("no_permission", "users") && connection->uid != 0))
        return NVML_ERROR_NO_PERMISSION;
    return 0;
}

static void list_processes(struct answer *answer, int device)
{
    for (const struct client *client = clients; client != NULL; client = client->next) {
        int kinds;
        uint64_t bytes = client_bytes(client, device, &kinds);
        if (kinds == 0 || (client->pidfd < 0 && knob_is("retain_listed", "off")))
            continue;
        add(answer, "process device=%d pid=%d kinds=%d named=%d", device, (int)client->pid, kinds, knob_has_pid("unnamed", client->pid) ? 0 : 1);
        add(answer, " bytes=%llu\n", knob_has_pid("unsized", client->pid) ? (unsigned long long)SIM_UNKNOWN : (unsigned long long)bytes);
    }
}

/* Everything that NVML can be asked, in one answer. */
static void answer_state(const struct connection *connection, struct answer *answer)
{
    struct pool pool = {0};
    int code = refusal(connection);

    read_pool(&pool);
    add(answer, "%s nvml=%d", code == 0 ? "ok" : "error", code);
    add_text(answer, "version", knob("version"));
    add_text(answer, "cuda", knob("cuda"));
    add(answer, " gpus=%d total=%llu free=%llu available=%llu\n", gpu_count(), (unsigned long long)pool.total, (unsigned long long)pool.free,
        (unsigned long long)pool.available);
    if (code != 0)
        return;
    for (int device = 0; device < gpu_count(); device++) {
        char uuid[64];
        device_uuid(device, uuid, sizeof uuid);
        add(answer, "device index=%d type=%s uuid=%s lost=%d memory_info=%s persistence=%d utilization=%s temperature=%s power=%s\n", device,
            discrete(device) ? "discrete" : "gb10", uuid, knob_is("lost", "on") ? 1 : 0, knob("memory_info"), knob_is("persistence", "on") ? 1 : 0,
            knob("utilization"), knob("temperature"), knob("power"));
        /* As in a real container without the host's PIDs: the list is empty. */
        if (same_pid_namespace(connection->pid))
            list_processes(answer, device);
    }
}

static bool cuda_refusal(const struct connection *connection, int device, struct answer *answer)
{
    switch (refusal(connection)) {
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        cuda_error(answer, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination");
        return true;
    case 0:
        break;
    default:
        cuda_error(answer, CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected");
        return true;
    }
    if (gpu_count() == 0)
        cuda_error(answer, CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected");
    else if (knob_is("lost", "on"))
        cuda_error(answer, CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized");
    else if (device < 0 || device >= gpu_count())
        cuda_error(answer, CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal");
    else
        return false;
    return true;
}

static struct allocation *allocate(struct client *client, int device, enum kind kind, uint64_t bytes)
{
    struct allocation *item = calloc(1, sizeof *item);

    if (item == NULL)
        return NULL;
    if (!hold(&item->held, round_up(bytes))) {
        free(item);
        return NULL;
    }
    item->id = next_id++;
    item->device = device;
    item->kind = kind;
    item->next = client->allocations;
    client->allocations = item;
    return item;
}

static struct allocation *find_context(const struct client *client, int device)
{
    if (client == NULL)
        return NULL;
    for (struct allocation *item = client->allocations; item != NULL; item = item->next)
        if (item->context && item->device == device)
            return item;
    return NULL;
}

static void answer_context(const struct connection *connection, int device, struct answer *answer)
{
    struct pool pool;
    uint64_t bytes = knob_size("context_bytes");
    struct client *client = get_client(connection->pid);
    struct allocation *context = find_context(client, device);

    if (client == NULL) {
        plain_error(answer, "the calling process is not visible from this host");
        return;
    }
    if (context == NULL) {
        /* cudaMemGetInfo's "free" on a GB10 is MemFree: a full page cache is enough to fail here. */
        if (!read_pool(&pool) || pool.free < bytes + knob_size("context_margin") || (context = allocate(client, device, COMPUTE, bytes)) == NULL) {
            cuda_error(answer, CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
            return;
        }
        context->context = true;
    }
    add(answer, "ok id=%llu bytes=%llu\n", (unsigned long long)context->id, (unsigned long long)context->held.bytes);
}

static void answer_alloc(const struct connection *connection, int device, uint64_t bytes, struct answer *answer)
{
    struct client *client = find_client(connection->pid);

    if (find_context(client, device) == NULL) {
        cuda_error(answer, CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context");
        return;
    }
    if (bytes == 0) {
        cuda_error(answer, CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
        return;
    }
    struct allocation *item = allocate(client, device, COMPUTE, bytes);
    if (item == NULL)
        cuda_error(answer, CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
    else
        add(answer, "ok id=%llu bytes=%llu\n", (unsigned long long)item->id, (unsigned long long)item->held.bytes);
}

static void answer_free(const struct connection *connection, uint64_t id, struct answer *answer)
{
    struct client *client = find_client(connection->pid);

    if (client != NULL) {
        for (struct allocation **link = &client->allocations; *link != NULL; link = &(*link)->next) {
            struct allocation *item = *link;
            if (item->id != id || item->context)
                continue;
            *link = item->next;
            let_go(&item->held);
            free(item);
            add(answer, "ok\n");
            return;
        }
    }
    cuda_error(answer, CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
}

static void answer_register(const char *request, struct answer *answer)
{
    char kind[8], size[32];
    uint64_t pid = sim_value_number(request, "pid", 0), bytes;
    uint64_t device = sim_value_number(request, "device", 0);
    struct client *client;

    sim_value(request, "kind", kind, sizeof kind);
    sim_value(request, "bytes", size, sizeof size);
    if (!chosen("C|G|C+G", kind) || !sim_size(size, &bytes) || bytes == 0 || device >= DEVICES) {
        plain_error(answer, "register needs pid, kind (C, G or C+G), bytes and perhaps device (0 or 1)");
        return;
    }
    client = pid == 0 || pid > INT32_MAX ? NULL : get_client((pid_t)pid);
    if (client == NULL) {
        plain_error(answer, "there is no such process");
        return;
    }
    struct allocation *item = allocate(client, (int)device, strcmp(kind, "G") == 0 ? GRAPHICS : COMPUTE, bytes);
    if (item == NULL) {
        plain_error(answer, "the pool cannot give that much");
        return;
    }
    if (strcmp(kind, "C+G") == 0)
        item->kind = (enum kind)(COMPUTE | GRAPHICS);
    add(answer, "ok id=%llu bytes=%llu\n", (unsigned long long)item->id, (unsigned long long)item->held.bytes);
}

static void answer_knobs(struct answer *answer)
{
    add(answer, "ok\n");
    for (size_t i = 0; i < KNOBS; i++) {
        add(answer, "knob name=%s", knobs[i].name);
        add_text(answer, "value", knobs[i].value);
        add_text(answer, "baseline", knobs[i].baseline);
        add_text(answer, "choices", knobs[i].choices);
        add(answer, "\n");
    }
}

static void answer_status(struct answer *answer)
{
    struct pool pool = {0};
    int hanging = 0;

    read_pool(&pool);
    for (size_t i = 0; i < connection_count; i++)
        hanging += connections[i]->parked;
    add(answer, "ok total=%llu free=%llu available=%llu pool=%llu hanging=%d\n", (unsigned long long)pool.total, (unsigned long long)pool.free,
        (unsigned long long)pool.available, (unsigned long long)pool_held.bytes, hanging);
    for (const struct client *client = clients; client != NULL; client = client->next)
        for (const struct allocation *item = client->allocations; item != NULL; item = item->next)
            add(answer, "allocation pid=%d alive=%d id=%llu device=%d kinds=%d context=%d bytes=%llu backing=%s\n", (int)client->pid, client->pidfd >= 0 ? 1 : 0,
                (unsigned long long)item->id, item->device, (int)item->kind, item->context ? 1 : 0, (unsigned long long)item->held.bytes,
                item->held.mapping != NULL ? "anonymous" : "kernel");
}

static bool change_knobs(const char *request, struct answer *answer)
{
    char value[256];

    for (int pass = 0; pass < 2; pass++) {      /* all of them or none */
        for (const char *word = request + strcspn(request, " "); *word != '\0'; word += strcspn(word, " ")) {
            char name[64];
            word += strspn(word, " ");
            size_t width = strcspn(word, " "), length = strcspn(word, "=");
            if (width == 0)
                break;
            if (length >= width || length >= sizeof name) {
                plain_error(answer, "a knob is set as name=value");
                return false;
            }
            memcpy(name, word, length);
            name[length] = '\0';
            struct knob *target = find_knob(name);
            sim_value(word, name, value, sizeof value);
            if (target == NULL || !acceptable(target, value)) {
                char text[512];
                snprintf(text, sizeof text, target == NULL ? "there is no knob %s" : "knob %s takes %s", name, target == NULL ? "" : target->choices);
                plain_error(answer, text);
                return false;
            }
            if (pass == 1)
                snprintf(target->value, sizeof target->value, "%s", value);
        }
    }
    return true;
}

static void reset_knobs(void)
{
    for (size_t i = 0; i < KNOBS; i++)
        memcpy(knobs[i].value, knobs[i].baseline, sizeof knobs[i].value);
    thaw_all();
}

/* Requests of the operator: never hang, and only from root or from the user that runs the daemon. */
static bool answer_operator(const struct connection *connection, struct answer *answer)
{
    const char *request = connection->request;
    size_t width = strcspn(request, " ");
    char verb[32];

    if (width >= sizeof verb)
        return false;
    memcpy(verb, request, width);
    verb[width] = '\0';
    if (!chosen("set|reset|knobs|status|register|freeze|thaw", verb))
        return false;
    if (connection->uid != 0 && connection->uid != geteuid()) {
        plain_error(answer, "only root turns the knobs");
    } else if (strcmp(verb, "knobs") == 0) {
        answer_knobs(answer);
    } else if (strcmp(verb, "status") == 0) {
        answer_status(answer);
    } else if (strcmp(verb, "register") == 0) {
        answer_register(request, answer);
    } else if (strcmp(verb, "freeze") == 0) {
        uint64_t pid = sim_value_number(request, "pid", 0);
        if (pid < 2 || pid > INT32_MAX || !freeze_process((pid_t)pid))
            plain_error(answer, "cannot freeze it: this needs the process and a writable freezer of cgroup v1");
        else
            add(answer, "ok\n");
    } else if (strcmp(verb, "thaw") == 0) {
        thaw_all();
        add(answer, "ok\n");
    } else {
        if (strcmp(verb, "reset") == 0)
            reset_knobs();
        else if (!change_knobs(request, answer))
            return true;
        if (!apply_knobs())
            plain_error(answer, "the pool cannot give that much");
        else
            add(answer, "ok\n");
    }
    return true;
}

/* False: the driver hangs, and there is no answer for now. */
static bool answer_request(const struct connection *connection, struct answer *answer)
{
    const char *request = connection->request;
    size_t width = strcspn(request, " ");
    char call[16];
    uint64_t device = sim_value_number(request, "device", 0);

    if (answer_operator(connection, answer))
        return true;
    sim_value(request, "call", call, sizeof call);
    if (knob_is("hang", "all") || (knob_is("hang", "processes") && strcmp(call, "processes") == 0))
        return false;
    if (width == 5 && strncmp(request, "state", width) == 0) {
        answer_state(connection, answer);
        return true;
    }
    if (cuda_refusal(connection, device < DEVICES ? (int)device : -1, answer))
        return true;
    if (width == 7 && strncmp(request, "meminfo", width) == 0) {
        struct pool pool;
        if (!read_pool(&pool))
            plain_error(answer, "cannot read the host's memory");
        else
            add(answer, "ok free=%llu total=%llu available=%llu\n", (unsigned long long)pool.free, (unsigned long long)pool.total,
                (unsigned long long)pool.available);
    } else if (width == 7 && strncmp(request, "context", width) == 0) {
        answer_context(connection, (int)device, answer);
    } else if (width == 5 && strncmp(request, "alloc", width) == 0) {
        answer_alloc(connection, (int)device, sim_value_number(request, "bytes", 0), answer);
    } else if (width == 4 && strncmp(request, "free", width) == 0) {
        answer_free(connection, sim_value_number(request, "id", 0), answer);
    } else if (width == 7 && strncmp(request, "destroy", width) == 0) {
        struct client *client = find_client(connection->pid);
        if (client != NULL)
            release_allocations(client);
        add(answer, "ok\n");
    } else {
        plain_error(answer, "unknown request");
    }
    return true;
}

static void close_connection(size_t index)
{
    close(connections[index]->fd);
    free(connections[index]);
    connections[index] = connections[--connection_count];
}

static void accept_connection(int listener)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    struct connection *connection = connection_count < CONNECTIONS ? calloc(1, sizeof *connection) : NULL;
    if (connection == NULL || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        free(connection);
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->pid = peer.pid;
    connection->uid = peer.uid;
    connections[connection_count++] = connection;
}

static bool send_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd entry = {.fd = fd, .events = POLLOUT};
            if (poll(&entry, 1, 1000) != 1)
                return false;
            continue;
        }
        if (sent < 0)
            return false;
        text += sent;
        length -= (size_t)sent;
    }
    return true;
}

/* True when the connection is done with. */
static bool serve(struct connection *connection)
{
    struct answer answer = {.text = malloc(4096), .size = 4096};

    if (answer.text == NULL)
        return true;
    settle_clients();
    if (!answer_request(connection, &answer)) {
        free(answer.text);
        if (!connection->parked && knob_is("hang_unkillable", "on")) {
            hang_froze = true;
            if (!freeze_process(connection->pid))
                say("pid %d could not be frozen: %s", (int)connection->pid, strerror(errno));
        }
        connection->parked = true;
        return false;
    }
    send_all(connection->fd, answer.text, answer.used);
    free(answer.text);
    return true;
}

static bool read_connection(struct connection *connection)
{
    ssize_t got = recv(connection->fd, connection->request + connection->used, sizeof connection->request - 1 - connection->used, 0);

    if (got < 0)
        return errno != EAGAIN && errno != EINTR;
    if (got == 0)
        return true;            /* gone, also out of a hang */
    if (connection->parked)
        return false;
    connection->used += (size_t)got;
    connection->request[connection->used] = '\0';
    char *end = strchr(connection->request, '\n');
    if (end == NULL)
        return connection->used >= sizeof connection->request - 1;
    *end = '\0';
    return serve(connection);
}

/* ---------------------------------------------------------------- start and stop */

static volatile sig_atomic_t stopping;

static void stop(int signal_number)
{
    (void)signal_number;
    stopping = 1;
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        say("%s: another gb10-simd is listening there", path);
        close(fd);
        return -1;
    }
    unlink(path);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || chmod(path, 0666) != 0 || listen(fd, 128) != 0) {
        say("%s: %s", path, strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

/* systemd's readiness protocol: one datagram to $NOTIFY_SOCKET. */
static void notify_ready(void)
{
    static const char ready[] = "READY=1";
    const char *target = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (target == NULL || target[0] == '\0' || strlen(target) >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, target, strlen(target));
    if (address.sun_path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(target));
    if (sendto(fd, ready, sizeof ready - 1, MSG_NOSIGNAL, (struct sockaddr *)&address, length) < 0)
        say("%s: %s", target, strerror(errno));
    close(fd);
}

static bool set_baseline(const char *assignment)
{
    char name[64];
    size_t length = strcspn(assignment, "=");

    if (assignment[length] != '=' || length >= sizeof name) {
        say("%s: a knob is set as NAME=VALUE", assignment);
        return false;
    }
    memcpy(name, assignment, length);
    name[length] = '\0';
    const char *value = assignment + length + 1;
    struct knob *target = find_knob(name);
    if (target == NULL || !acceptable(target, value)) {
        say(target == NULL ? "there is no knob %s" : "knob %s takes %s", name, target == NULL ? "" : target->choices);
        return false;
    }
    snprintf(target->baseline, sizeof target->baseline, "%s", value);
    return true;
}

static bool read_configuration(const char *path)
{
    char line[512];
    bool good = true;
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        say("%s: %s", path, strerror(errno));
        return false;
    }
    while (good && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] != '\0' && line[0] != '#')
            good = set_baseline(line);
    }
    fclose(file);
    return good;
}

static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            say("open files stay limited to their soft limit: %s", strerror(errno));
    }
}

static void wait_for_work(int listener, const sigset_t *unblocked)
{
    int timeout = next_due();
    struct timespec until = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};
    struct pollfd *entries = calloc(1 + connection_count, sizeof *entries);
    struct pollfd *grown;
    size_t count = 0;

    if (entries == NULL)
        return;
    entries[count++] = (struct pollfd){.fd = listener, .events = POLLIN};
    size_t waiting = connection_count;
    for (size_t i = 0; i < waiting; i++)
        entries[count++] = (struct pollfd){.fd = connections[i]->fd, .events = POLLIN};
    for (const struct client *client = clients; client != NULL; client = client->next) {
        if (client->pidfd < 0)
            continue;
        grown = realloc(entries, (count + 1) * sizeof *entries);
        if (grown == NULL)
            break;
        entries = grown;
        entries[count++] = (struct pollfd){.fd = client->pidfd, .events = POLLIN};
    }
    if (ppoll(entries, count, timeout < 0 ? NULL : &until, unblocked) >= 0) {
        for (size_t i = waiting; i-- > 0;)
            if (entries[1 + i].revents != 0 && read_connection(connections[i]))
                close_connection(i);
        if (entries[0].revents != 0)
            accept_connection(listener);
    }
    free(entries);
    settle_clients();
    for (size_t i = connection_count; i-- > 0;)
        if (connections[i]->parked && serve(connections[i]))
            close_connection(i);
}

static void usage(FILE *stream)
{
    fputs("usage: gb10-simd [--config FILE] [--set KNOB=VALUE]... [--backing auto|kernel|anonymous]\n"
          "                 [--library FILE] [--smi FILE] [--meminfo FILE] [--proc DIRECTORY]\n"
          "The driver of a simulated GB10, in the foreground; socket in $GB10_SIM_DIR or " SIM_DIRECTORY ".\n",
          stream);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'},  {"set", required_argument, NULL, 's'}, {"backing", required_argument, NULL, 'b'},
        {"library", required_argument, NULL, 'l'}, {"smi", required_argument, NULL, 'n'}, {"meminfo", required_argument, NULL, 'm'},
        {"proc", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    char path[256];
    int option;

    for (size_t i = 0; i < KNOBS; i++)
        snprintf(knobs[i].baseline, sizeof knobs[i].baseline, "%s", knobs[i].usual);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            if (!read_configuration(optarg))
                return 2;
            break;
        case 's':
            if (!set_baseline(optarg))
                return 2;
            break;
        case 'b':
            if (!chosen("auto|kernel|anonymous", optarg)) {
                usage(stderr);
                return 2;
            }
            backing = optarg[1] == 'u' ? BACKING_AUTO : optarg[0] == 'k' ? BACKING_KERNEL : BACKING_ANONYMOUS;
            break;
        case 'l':
            library_file = optarg;
            break;
        case 'n':
            smi_file = optarg;
            break;
        case 'm':
            meminfo_path = optarg;
            break;
        case 'p':
            proc_directory = optarg;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    if (optind < argc || !sim_socket_path(path, sizeof path)) {
        usage(stderr);
        return 2;
    }
    raise_descriptors();
    reset_knobs();
    if (!apply_knobs()) {
        say("the pool cannot give the %s that the knob pool asks for", knob("pool"));
        return 1;
    }
    struct sigaction action = {.sa_handler = stop};
    sigset_t stops, unblocked;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigprocmask(SIG_BLOCK, &stops, &unblocked);     /* they arrive in ppoll only */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int listener = listen_at(path);
    if (listener < 0)
        return 1;
    say("listening at %s", path);
    notify_ready();
    while (!stopping)
        wait_for_work(listener, &unblocked);
    unlink(path);
    reset_knobs();
    put_file(library_file, true);
    put_file(smi_file, true);
    put_proc(false);
    if (proc_mounted && umount2(proc_directory, MNT_DETACH) != 0)
        say("%s: %s", proc_directory, strerror(errno));
    return 0;
}
