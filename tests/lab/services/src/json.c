/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

static const char *blank(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

static int hex(const char *at)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t put_utf8(char *out, uint32_t point)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

/* A string; out (caller frees) is its decoded text, NULL to skip it. The place behind it, or NULL. */
static const char *read_string(const char *at, char **out)
{
    if (*at != '"')
        return NULL;
    char *text = malloc(strlen(at) + 1);        /* decoded is never longer than encoded */
    size_t used = 0;
    if (text == NULL)
        return NULL;
    for (at++; *at != '"'; at++) {
        static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
        if ((unsigned char)*at < 0x20)
            goto bad;           /* the end of the text, too */
        if (*at != '\\') {
            text[used++] = *at;
            continue;
        }
        at++;
        const char *known = *at == '\0' ? NULL : strchr(escapes, *at);
        if (known != NULL) {
            text[used++] = meanings[known - escapes];
            continue;
        }
        int first = *at == 'u' ? hex(at + 1) : -1;
        if (first <= 0)
            goto bad;           /* also \u0000, which no C string holds */
        at += 4;
        uint32_t point = (uint32_t)first;
        if (point >= 0xd800 && point < 0xdc00 && at[1] == '\\' && at[2] == 'u') {
            int second = hex(at + 3);
            if (second >= 0xdc00 && second < 0xe000) {
                point = 0x10000 + ((point - 0xd800) << 10) + ((uint32_t)second - 0xdc00);
                at += 6;
            }
        }
        used += put_utf8(text + used, point >= 0xd800 && point < 0xe000 ? 0xfffd : point);
    }
    text[used] = '\0';
    if (out != NULL)
        *out = text;
    else
        free(text);
    return at + 1;
bad:
    free(text);
    return NULL;
}

static const char *skip_value(const char *at, int depth)
{
    at = blank(at);
    if (depth > DEPTH_MAX)
        return NULL;
    if (*at == '"')
        return read_string(at, NULL);
    if (*at == '{' || *at == '[') {
        char close = *at == '{' ? '}' : ']';
        at = blank(at + 1);
        if (*at == close)
            return at + 1;
        for (;;) {
            if (close == '}') {
                at = read_string(blank(at), NULL);
                if (at == NULL || *(at = blank(at)) != ':')
                    return NULL;
                at++;
            }
            at = skip_value(at, depth + 1);
            if (at == NULL)
                return NULL;
            at = blank(at);
            if (*at == close)
                return at + 1;
            if (*at++ != ',')
                return NULL;
        }
    }
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return at + strlen(words[i]);
    size_t length = strspn(at, "-+.0123456789eE");
    return length == 0 ? NULL : at + length;
}

static bool keep(struct strings *out, char *text)
{
    char **larger = realloc(out->item, (out->count + 1) * sizeof *larger);

    if (larger == NULL) {
        free(text);
        return false;
    }
    out->item = larger;
    out->item[out->count++] = text;
    return true;
}

static const char *take_value(const char *at, struct strings *out)
{
    char *text;

    free_strings(out);          /* of a key that is there twice the last one counts */
    at = blank(at);
    if (*at == '"') {
        at = read_string(at, &text);
        return at != NULL && keep(out, text) ? at : NULL;
    }
    if (*at != '[') {
        out->other = true;
        return skip_value(at, 1);
    }
    out->list = true;
    at = blank(at + 1);
    if (*at == ']')
        return at + 1;
    for (;;) {
        at = blank(at);
        if (*at == '"') {
            at = read_string(at, &text);
            if (at == NULL || !keep(out, text))
                return NULL;
        } else {
            out->other = true;
            at = skip_value(at, 2);
            if (at == NULL)
                return NULL;
        }
        at = blank(at);
        if (*at == ']')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
}

bool json_strings(const char *text, const char *key, struct strings *out)
{
    memset(out, 0, sizeof *out);
    const char *at = blank(text);
    if (*at != '{')
        return false;
    at = blank(at + 1);
    while (*at != '}') {
        char *name;
        at = read_string(at, &name);
        if (at == NULL)
            return false;
        bool wanted = strcmp(name, key) == 0;
        free(name);
        at = blank(at);
        if (*at != ':')
            return false;
        at = wanted ? take_value(at + 1, out) : skip_value(at + 1, 1);
        if (at == NULL)
            return false;
        at = blank(at);
        if (*at == ',') {
            at = blank(at + 1);
            if (*at == '}')
                return false;
        } else if (*at != '}') {
            return false;
        }
    }
    return *blank(at + 1) == '\0';
}

void free_strings(struct strings *strings)
{
    for (size_t i = 0; i < strings->count; i++)
        free(strings->item[i]);
    free(strings->item);
    memset(strings, 0, sizeof *strings);
}
