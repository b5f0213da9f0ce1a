/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A real, if modest, text embedding: hashed words and character trigrams, signed, of unit length. The same text gives the
 * same vector on every machine, and texts that share words are near each other.
 */
#ifndef LAB_EMBEDDING_H
#define LAB_EMBEDDING_H

#include <stddef.h>

#define DIMENSIONS 384

/* The number of tokens (words) of the text. */
size_t embed(const char *text, float vector[DIMENSIONS]);

#endif
