/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * CUDA as far as these services need it: a context and device memory from the simulated driver. On failure each of these
 * prints what CUDA would have said and returns false.
 */
#ifndef LAB_GPU_H
#define LAB_GPU_H

#include <stdbool.h>
#include <stdint.h>

bool gpu_memory(uint64_t *free_bytes, uint64_t *total, uint64_t *available);
bool gpu_context(uint64_t *bytes);
bool gpu_alloc(uint64_t bytes);

#endif
