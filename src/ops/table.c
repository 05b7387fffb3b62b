/* ----
 * ops/table.c: the rows of the op table, made of the map in ops/op.c, and the table as text.
 * ---- */
#ifndef MPT__OPS_TABLE_INCLUDED
#define MPT__OPS_TABLE_INCLUDED

#include "ops/inplace.c"

#define mpt__none_shape NULL
#define mpt__none_forward NULL
#define mpt__none_backward NULL

static const mpt__op_row mpt__op_rows[MPT__OP_COUNT] = {
    {"none", "", NULL, NULL, NULL, MPT__POLICY_ANY, MPT__FN_NONE, MPT__FN_NONE},
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) \
    {#id, \
     onnx, \
     mpt__##shape##_shape, \
     mpt__##forward##_forward, \
     mpt__##backward##_backward, \
     MPT__POLICY_##policy, \
     MPT__FN_##fn, \
     MPT__FN_##backward_fn},
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
};

/* ==== Results that backward computes again ==== */

static bool mpt__is_norm(int op) {
    return op == MPT__OP_layer_norm || op == MPT__OP_rms_norm || op == MPT__OP_group_norm;
}

/* What is itself to be computed again repeats nothing: a repetition never waits for another. */
static bool mpt__can_repeat(const mpt__frame *frame) {
    if (frame->op == MPT__OP_linear)
        return mpt__activation_keeps_input((mpt_activation)frame->attributes->activation);
    return !frame->record->again && (frame->row->forward == mpt__unary_keep_in_forward ||
                                     (mpt__is_norm(frame->op) && frame->row->forward));
}

static mpt_status mpt__repeat(mpt__frame *frame) {
    if (frame->op == MPT__OP_linear) {
        mpt_activation activation = (mpt_activation)frame->attributes->activation;
        return mpt__launch_unary(frame, mpt__activation_function(activation, false),
                                 frame->saved[2], frame->out[0], MPT__WRITE);
    }
#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)
    if (mpt__is_norm(frame->op)) { /* of the sum, where something was added */
        mpt__tensor *in[3] = {frame->saved[MPT__NORM_SUM], frame->in[MPT__NORM_WEIGHT],
                              frame->in[MPT__NORM_BIAS]};
        frame->in = in;
        frame->n_in = 3;
        return mpt__normalise_forward(frame);
    }
#endif
    return mpt__unary_forward(frame);
}

/* ==== The policy table as text ==== */

static const char *const mpt__policy_names[] = {"any dtype, unchanged", "input dtype (mixed: f32)",
                                                "f16 / bf16", "f32", "f32 always"};

size_t mpt_autocast_policy(char *text, size_t size) {
    mpt__text prose = mpt__text_make(text, size);
    mpt__write_text(&prose, "mptrain autocast policy, version 1\n");
    for (int op = 1; op < MPT__OP_COUNT; op++)
        mpt__write_text(&prose, "%s: %s\n", mpt__op_rows[op].name,
                        mpt__policy_names[mpt__op_rows[op].policy]);
    return prose.length;
}

#endif
