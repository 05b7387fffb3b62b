/* ----
 * tools/face/diagnose.h: what is wrong with a training.
 * ---- */
#ifndef MPT__FACE_DIAGNOSE_INCLUDED
#define MPT__FACE_DIAGNOSE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Diagnosis ====
 *
 * Some steps of a training, looked at from inside: what is wrong, where, and what to do. The
 * training is afterwards as it was before, to the bit: mpt_snapshot and mpt_restore see to that. */

typedef enum mpt_fault {           /* in the order in which findings are told */
    MPT_FAULT_INPUT_NONFINITE = 0, /* value: the sample's number in its batch */
    MPT_FAULT_WEIGHTS_NONFINITE,   /* before the first step */
    MPT_FAULT_FORWARD_NONFINITE,   /* the first layer whose output is not finite, in fp32, too */
    MPT_FAULT_FORWARD_OVERFLOW,    /* the same, where fp32 is finite; value: what fp32 reaches */
    MPT_FAULT_LOSS_NONFINITE,      /* of outputs that are finite */
    MPT_FAULT_BACKWARD_NONFINITE,  /* the first layer from the loss on whose gradient is not */
    MPT_FAULT_SKIPS,               /* value: steps in a row that the scaler has skipped */
    MPT_FAULT_UNDERFLOW,           /* value: share of a layer's gradients that fp16 makes zero */
    MPT_FAULT_INPUT_RANGE,         /* value: the deviation of the inputs */
    MPT_FAULT_TARGETS_CONSTANT,    /* value: the one class that there is */
    MPT_FAULT_RATE_HIGH,           /* value: change of a weight matrix in a step, of its norm */
    MPT_FAULT_RATE_LOW,
    MPT_FAULT_WEIGHTS_LARGE, /* value: the largest magnitude */
    MPT_FAULT_EXPLODING,     /* value: gradients of the first layer over those of the last one */
    MPT_FAULT_VANISHING,
    MPT_FAULT_DEAD_LAYER,   /* all outputs are zero */
    MPT_FAULT_DEAD_UNITS,   /* value: share of units that are zero for every sample */
    MPT_FAULT_SATURATED,    /* value: share of outputs of a tanh or sigmoid at its ends */
    MPT_FAULT_UNREACHED,    /* the loss does not depend on this parameter */
    MPT_FAULT_NO_OPTIMIZER, /* has gradients, and no step changes it */
    MPT_FAULT_FROZEN,       /* value: how many parameters; may be meant */
    MPT_FAULT_LOSS_RISES,   /* value: the last losses over the first ones */
    MPT_FAULTS
} mpt_fault;

typedef struct mpt_finding {
    mpt_fault fault;
    int64_t step;    /* from 1; 0: before the first one */
    double value;    /* as above */
    char place[160]; /* a module's or parameter's path, or "" */
    char text[360];  /* what is wrong and what to do, in a sentence or two */
} mpt_finding;

typedef struct mpt_diagnosis_config {
    int64_t steps;       /* 20 */
    mpt_dtype precision; /* MPT_F16: that of the training, as in mpt_fit_config */
    mpt_scaler scaler;   /* null handle: for MPT_F16 one with the usual settings */
    bool scaled;         /* true; false: fp16 without a scaler, to see what that loses */
    mpt_tensor (*loss)(mpt_tensor output, mpt_tensor target, void *user); /* NULL: nll_loss */
    void *user;
} mpt_diagnosis_config;

enum { MPT_MOST_FINDINGS = 32 };
typedef struct mpt_diagnosis {
    mpt_status status;
    int64_t steps, skipped;
    double first_loss, last_loss, scale;
    double seconds[2]; /* of a step, median: in fp32, in the precision asked for */
    int count;         /* findings, one of a kind, the gravest first */
    mpt_finding finding[MPT_MOST_FINDINGS];
} mpt_diagnosis;

MPTRAIN_TOOLS_API mpt_diagnosis_config mpt_diagnosis_config_default(void);
/* Trains so many steps on batches of the loader, each of them also in fp32 to compare with. `text`
   gets a table of layers (largest output, zeros, gradients and what fp16 loses of them), the
   findings, and whether the precision pays here, as mpt_machine_report writes; *length (may be
   NULL) what it needs. Hooks of yours run meanwhile; no step may be open. It takes memory for the
   snapshot and for one layer's numbers. */
MPTRAIN_TOOLS_API mpt_diagnosis mpt_diagnose(mpt_module net, mpt_optimizer optimizer,
    mpt_loader loader, const mpt_diagnosis_config *config, char *text, size_t capacity,
    size_t *length);

#ifdef __cplusplus
}
#endif
#endif
