/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * As much of JSON as a request of the embeddings API needs: the strings, and lists of strings, of one object.
 */
#ifndef LAB_JSON_H
#define LAB_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct strings {
    char **item;
    size_t count;
    bool list;                  /* the value was a list, not one string */
    bool other;                 /* the value was something else (a number, an object ...) */
};

/* The value of a key of the object that is the whole text. False when the text is not one JSON object. */
bool json_strings(const char *text, const char *key, struct strings *out);

void free_strings(struct strings *strings);

#endif
