/* text.h - a text to learn, a file or Shakespeare's sonnet 18, as tokens. */
#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mptrain.h"

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

/* How text becomes tokens: byte by byte, or as GPT-2's are made. */
typedef struct text_codec {
    mpt_tokenizer tokenizer;
    bool bytes;
    int64_t vocabulary;
} text_codec;

/* From a folder with vocab.json and merges.txt, or encoder.json and vocab.bpe; NULL: bytes. */
static inline text_codec codec_open(mpt_context *ctx, const char *folder) {
    text_codec codec;
    char vocabulary[512], merges[512];
    memset(&codec, 0, sizeof codec);
    codec.bytes = folder == NULL;
    codec.vocabulary = 256;
    if (codec.bytes) return codec;
    snprintf(vocabulary, sizeof vocabulary, "%s/encoder.json", folder);
    FILE *file = fopen(vocabulary, "rb");
    if (file) fclose(file);
    if (!file) snprintf(vocabulary, sizeof vocabulary, "%s/vocab.json", folder);
    snprintf(merges, sizeof merges, "%s/%s", folder, file ? "vocab.bpe" : "merges.txt");
    codec.tokenizer = mpt_bpe_tokenizer(ctx, vocabulary, merges);
    codec.vocabulary = mpt_vocabulary_size(codec.tokenizer);
    return codec;
}

/* The tokens of a text, to be freed; how many is what it returns, 0 on error. */
static inline int64_t codec_encode(const text_codec *codec, const char *text, size_t bytes,
                                   int32_t **tokens) {
    const int64_t count =
        codec->bytes ? (int64_t)bytes : mpt_encode(codec->tokenizer, text, bytes, NULL, 0);
    *tokens = count > 0 ? (int32_t *)malloc((size_t)count * sizeof **tokens) : NULL;
    if (!*tokens) return 0;
    if (!codec->bytes) return mpt_encode(codec->tokenizer, text, bytes, *tokens, count);
    for (int64_t i = 0; i < count; i++) (*tokens)[i] = (unsigned char)text[i];
    return count;
}

/* Writes a token to stdout. */
static inline void codec_put(const text_codec *codec, int32_t token) {
    char text[512];
    const int64_t n =
        codec->bytes ? -1 : mpt_decode(codec->tokenizer, &token, 1, text, (int64_t)sizeof text);
    if (codec->bytes) putchar(token);
    if (n > 0) fwrite(text, 1, n < (int64_t)sizeof text ? (size_t)n : sizeof text, stdout);
}

/* The tokens of a file, or, without a path, of the sonnet, to be freed; how many is what it
 * returns, -1 where it could not be opened. */
static inline int64_t codec_read(const text_codec *codec, const char *path, int32_t **tokens) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = NULL;
    size_t length = 0, capacity = 0, got = 1;
    if (path && !file) return -1;
    while (file && got > 0) {
        if (length == capacity) {
            char *more = (char *)realloc(text, capacity = 2 * capacity + 65536);
            if (!more) break;
            text = more;
        }
        got = fread(text + length, 1, capacity - length, file);
        length += got;
    }
    if (file) fclose(file);
    const int64_t count = path ? codec_encode(codec, text, length, tokens)
                               : codec_encode(codec, sonnet, strlen(sonnet), tokens);
    free(text);
    return count;
}

/* `samples` windows of `block` tokens at random places, or, with 0, one beside the other. */
static inline mpt_loader text_windows(mpt_context *ctx, int64_t block, int64_t batch,
                                      int64_t samples, const int32_t *tokens, int64_t count) {
    mpt_window_config windows = mpt_window_config_default();
    mpt_loader_config config = mpt_loader_config_default();
    windows.block = block, windows.samples = samples, windows.random = samples > 0;
    config.batch = batch;
    return mpt_loader_create(ctx, mpt_token_memory(ctx, tokens, count, &windows), &config);
}

#endif
