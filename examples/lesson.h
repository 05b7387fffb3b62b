/* lesson.h - what the lessons 01 to 16 share: how they begin, show a tensor, and end. */
#ifndef LESSON_H
#define LESSON_H

#include "common.h"

/* A context with warnings on stderr; NULL, with the reason printed, if there is none. */
static inline mpt_context *lesson_begin(const char *name, const char *title) {
    mpt_config config = default_config(name);
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) fail_with_error(name, ctx);
    printf("%s\n", title);
    return ctx;
}

static inline void heading(const char *text) { printf("\n-- %s\n", text); }

/* A name and the values of a tensor, one row per line. */
static inline void show(const char *name, mpt_tensor tensor) {
    char text[2048];
    mpt_format(tensor, NULL, text, sizeof text);
    printf(strchr(text, '\n') ? "%s =\n%s\n" : "%s = %s\n", name, text);
}

/* What main returns: 0 if nothing failed and the lesson's numbers came out as they should. */
static inline int lesson_end(mpt_context *ctx, bool right) {
    int status = mpt_failed(ctx) ? fail_with_error(program_name, ctx) : 0;
    mpt_destroy(ctx);
    if (status == 0 && !right)
        status = fail(program_name, 1, "the numbers are not what they should be");
    if (status == 0) printf("\n%s: all as it should be\n", program_name);
    return status;
}

#endif
