/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the daemon and its clients share: the socket, the line protocol (README.md) and small parsers.
 *
 * The parsers are our own because strtoull and sscanf bind to __isoc23_* on a build machine with glibc 2.38 or newer,
 * and the result would then not start on the hosts (glibc 2.36) or in older container images.
 */
#ifndef GB10_SIM_H
#define GB10_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_DIRECTORY "/run/gb10-sim"
#define SIM_SOCKET "driver.sock"
#define SIM_REQUEST_MAX 4096
#define SIM_UNKNOWN UINT64_MAX /* "the driver does not say", as NVML_VALUE_NOT_AVAILABLE */

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

/* Decimal digits only; false for anything else, also for what does not fit. */
bool sim_number(const char *text, uint64_t *value);

/* A size: digits with an optional KiB, MiB or GiB; false for anything else. */
bool sim_size(const char *text, uint64_t *bytes);

/* Copies text to out with everything but letters, digits and ._-/:, as %XX; always terminated. */
void sim_quote(char *out, size_t size, const char *text);

/* The value of key in "verb key=value key=value", unquoted into out; false when absent (out is then ""). */
bool sim_value(const char *line, const char *key, char *out, size_t size);

/* The same as a number; fallback when absent or malformed. */
uint64_t sim_value_number(const char *line, const char *key, uint64_t fallback);

/* Path of the socket below $GB10_SIM_DIR. False when it does not fit into a socket address. */
bool sim_socket_path(char *out, size_t size);

/*
 * Sends one request and returns the whole answer (caller frees), or NULL with errno.
 * All signals are blocked meanwhile: a driver that hangs is not interrupted by a signal, as a task in the kernel is not.
 */
char *sim_ask(const char *request);

#endif
