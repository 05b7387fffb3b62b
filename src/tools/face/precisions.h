/* ----
 * tools/face/precisions.h: the same training in several precisions.
 * ---- */
#ifndef MPT__FACE_PRECISIONS_INCLUDED
#define MPT__FACE_PRECISIONS_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Precisions side by side ====
 *
 * The same training from the same seed in fp32, under autocast to fp16 and bf16, and with weights
 * of fp16 and bf16, each in a context of its own. */

typedef struct mpt_training {
    mpt_module (*net)(mpt_context *context, void *user);
    mpt_optimizer (*optimizer)(mpt_module net, void *user);
    mpt_loader (*loader)(mpt_context *context, void *user);
    mpt_tensor (*loss)(mpt_tensor output, mpt_tensor target, void *user); /* NULL: nll_loss */
    void *user;
} mpt_training;

enum { MPT_PRECISION_RUNS = 5, MPT_PRECISION_POINTS = 5 };
typedef struct mpt_precision_run {
    const char *name;                  /* "fp32", "fp16", "bf16", "half fp16", "half bf16" */
    mpt_status status;                 /* of its context */
    double loss[MPT_PRECISION_POINTS]; /* means of the steps up to each fifth of them */
    double seconds;                    /* of a step, median */
    int64_t peak;                      /* bytes, as mpt_memory counts them */
    int64_t skipped;                   /* steps, by the scaler, which fp16 has */
    double scale;                      /* at the end; 1 without a scaler */
} mpt_precision_run;

/* Trains so many steps, at least 5, in each precision, with contexts of `config` (NULL: defaults).
   `runs` gets what became of each, and `text` the same as a table, as mpt_machine_report writes;
   returns the length it needs, 0 where nothing could be run. */
MPTRAIN_TOOLS_API size_t mpt_compare_precisions(const mpt_training *training,
    const mpt_config *config, int64_t steps, mpt_precision_run runs[MPT_PRECISION_RUNS], char *text,
    size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
