/* text.h - a text to learn, as bytes: a file, or Shakespeare's sonnet 18. */
#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const char sonnet[] = "Shall I compare thee to a summer's day?\n"
                             "Thou art more lovely and more temperate:\n"
                             "Rough winds do shake the darling buds of May,\n"
                             "And summer's lease hath all too short a date;\n"
                             "Sometime too hot the eye of heaven shines,\n"
                             "And often is his gold complexion dimm'd;\n"
                             "And every fair from fair sometime declines,\n"
                             "By chance or nature's changing course untrimm'd;\n"
                             "But thy eternal summer shall not fade,\n"
                             "Nor lose possession of that fair thou ow'st;\n"
                             "Nor shall death brag thou wander'st in his shade,\n"
                             "When in eternal lines to time thou grow'st:\n"
                             "So long as men can breathe or eyes can see,\n"
                             "So long lives this, and this gives life to thee.\n";

/* The bytes of a file, or, without a path, of the sonnet, to be freed; NULL if there are fewer than
 * `least` of them. */
static inline int32_t *read_bytes(const char *path, int64_t least, int64_t *count) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    const char *from = sonnet;
    int32_t *tokens = NULL;
    int64_t capacity = 0;
    for (*count = 0; path ? file != NULL : *from != 0; (*count)++) {
        const int byte = file ? fgetc(file) : (unsigned char)*from++;
        if (byte == EOF) break;
        if (*count == capacity) {
            capacity = 2 * capacity + 4096;
            int32_t *more = (int32_t *)realloc(tokens, (size_t)capacity * sizeof *more);
            if (!more) break;
            tokens = more;
        }
        tokens[*count] = byte;
    }
    if (file) fclose(file);
    if (*count >= least) return tokens;
    free(tokens);
    return NULL;
}

#endif
