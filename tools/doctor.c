/* doctor.c - `make doctor`: what this machine computes with, how fast, and in which precision to
 * train here. */
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

int main(void) {
    static char text[4096];
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr;
    mpt_context *ctx = mpt_create(&config);
    const mpt_machine machine = mpt_machine_measure(ctx, 4);
    if (mpt_machine_report(ctx, &machine, text, sizeof text) > 0) fputs(text, stdout);
    const int status = mpt_failed(ctx);
    mpt_destroy(ctx);
    return status;
}
