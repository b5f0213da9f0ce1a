/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "embedding.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define WORD_MAX 128
#define WORD_WEIGHT 1.0f
#define TRIGRAM_WEIGHT 0.35f

static uint64_t hash(const char *text, size_t length, uint64_t seed)
{
    uint64_t value = UINT64_C(0xcbf29ce484222325) ^ seed;

    for (size_t i = 0; i < length; i++)
        value = (value ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    value ^= value >> 33;       /* FNV leaves the high bits of short texts poor */
    value *= UINT64_C(0xff51afd7ed558ccd);
    return value ^ value >> 33;
}

static void feature(float *vector, const char *text, size_t length, uint64_t seed, float weight)
{
    uint64_t value = hash(text, length, seed);

    vector[value % DIMENSIONS] += value >> 63 ? weight : -weight;
}

static bool part_of_word(unsigned char c)
{
    return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
}

static void add_word(float *vector, const char *word, size_t length)
{
    char framed[WORD_MAX + 2];

    feature(vector, word, length, 1, WORD_WEIGHT);
    framed[0] = '^';
    memcpy(framed + 1, word, length);
    framed[length + 1] = '$';
    for (size_t i = 0; i + 3 <= length + 2; i++)
        feature(vector, framed + i, 3, 2, TRIGRAM_WEIGHT);
}

size_t embed(const char *text, float vector[DIMENSIONS])
{
    char word[WORD_MAX];
    size_t length = 0, tokens = 0;
    double norm = 0;

    memset(vector, 0, DIMENSIONS * sizeof *vector);
    for (;; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 'A' && c <= 'Z')
            c = (unsigned char)(c + 'a' - 'A');
        if (part_of_word(c) && length < WORD_MAX) {
            word[length++] = (char)c;
            continue;
        }
        if (length > 0) {
            add_word(vector, word, length);
            tokens++;
        }
        length = 0;
        if (part_of_word(c))
            word[length++] = (char)c;
        if (c == '\0')
            break;
    }
    for (size_t i = 0; i < DIMENSIONS; i++)
        norm += (double)vector[i] * (double)vector[i];
    for (size_t i = 0; i < DIMENSIONS && norm > 0; i++)
        vector[i] = (float)((double)vector[i] / sqrt(norm));
    return tokens;
}
