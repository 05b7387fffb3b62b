/* ----
 * tools/face/zeroth.h: training by forwards alone.
 * ---- */
#ifndef MPT__FACE_ZEROTH_INCLUDED
#define MPT__FACE_ZEROTH_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Training by forwards alone ====
 *
 * Fine-tuning in the memory of inference: no gradient, no moment, nothing kept for backward. MeZO,
 * arXiv:2305.17333: the weights move a little along a random direction, to one side and the other;
 * the difference of the two losses says how far to go along it. The directions are drawn again from
 * their seeds, so besides the net there is only room for one more copy of its largest parameter. It
 * learns slowly: it is for large nets that have learned before, and small changes. */

typedef struct mpt_zeroth_config {
    double lr;       /* 1e-6; of a net as small as a lesson's far more */
    double epsilon;  /* 1e-3; how far the weights move to either side, times a normal number each */
    int directions;  /* 1; up to 64, whose mean is taken: two forwards for each */
    uint64_t seed;   /* 0; of the directions, beside the step's number */
} mpt_zeroth_config;
MPTRAIN_TOOLS_API mpt_zeroth_config mpt_zeroth_config_default(void);

/* One number, the loss; called in inference mode, twice for each direction, with the weights moved.
   What it draws by chance (mpt_train, dropout) makes the two differ: call mpt_eval before. */
typedef mpt_tensor (*mpt_zeroth_loss)(mpt_module net, void *user);

typedef struct mpt_zeroth {
    mpt_status status; /* MPT_ERROR_NUMERIC: a loss was not finite */
    double loss;       /* mean of all that were computed */
    double slope;      /* of the loss along the last direction */
    char error[256];   /* what was wrong, if it was something of the context's */
} mpt_zeroth;

/* One step. Those parameters of the net change that collect gradients (mpt_freeze, mpt_lora); they
   are best fp32, as halves round small moves away. `step` is the number of the step, whose
   directions no other step has; the same step from the same weights gives the same bits. Unless
   status is MPT_OK the weights are put back, but for the rounding of the moves (1e-7 or so of a
   weight), and the context has no error. config NULL: defaults. */
MPTRAIN_TOOLS_API mpt_zeroth mpt_zeroth_step(mpt_module net, mpt_zeroth_loss loss, void *user,
    const mpt_zeroth_config *config, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
