/* checks.h: what a test says about the errors of a context. */
#ifndef TEST_CHECKS_H
#define TEST_CHECKS_H

static inline void check_ok(mpt_context *context) {
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
}

/* The error must contain `part`; then it is cleared. */
static inline void check_error(mpt_context *context, mpt_status status, const char *part) {
    CHECK_EQ_INT(mpt_error_code(context), status);
    CHECK_CONTAINS(mpt_error(context), part);
    mpt_clear_error(context);
}

#endif
