/* ---------------------------------------------------------------------------------------------
 * 50_ops.c: the op table, the map of the system: one line per op.
 *
 * Rules, forward and backward functions stand in the rooms 51 to 54; rows that share a form share
 * the functions and differ in the kernel's function alone.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__50_OPS_INCLUDED
#define MPT__50_OPS_INCLUDED

#include "44_values.c"

/* O(id, policy, shape rule, forward, backward, function, backward function, ONNX name):
   functions are mpt__<shape>_shape, mpt__<forward>_forward, mpt__<backward>_backward; `none`
   means NULL. */
#define MPT__OPS(O)                                                                         \
    O(add, INPUT, binary, binary, add, ADD, NONE, "Add")                                    \
    O(sub, INPUT, binary, binary, sub, SUB, NONE, "Sub")                                    \
    O(mul, INPUT, binary, binary, mul, MUL, NONE, "Mul")                                    \
    O(div, INPUT, binary, binary, div, DIV, NONE, "Div")                                    \
    O(add_scalar, INPUT, unary, unary, pass, ADD_SCALAR, NONE, "Add")                       \
    O(mul_scalar, INPUT, unary, unary, linear_unary, MUL_SCALAR, MUL_SCALAR, "Mul")         \
    O(neg, INPUT, unary, unary, linear_unary, NEG, NEG, "Neg")                              \
    O(exp, FP32, unary, unary_keep_out, unary, EXP, MUL, "Exp")                             \
    O(log, FP32, unary, unary_keep_in, unary, LOG, DIV, "Log")                              \
    O(sqrt, INPUT, unary, unary_keep_out, unary, SQRT, SQRT_BACKWARD, "Sqrt")               \
    O(relu, INPUT, unary, unary_keep_out, unary, RELU, RELU_BACKWARD, "Relu")               \
    O(gelu, INPUT, unary, unary_keep_in, unary, GELU, GELU_BACKWARD, "Gelu")                \
    O(gelu_tanh, INPUT, unary, unary_keep_in, unary, GELU_TANH, GELU_TANH_BACKWARD, "Gelu") \
    O(tanh, INPUT, unary, unary_keep_out, unary, TANH, TANH_BACKWARD, "Tanh")               \
    O(sigmoid, INPUT, unary, unary_keep_out, unary, SIGMOID, SIGMOID_BACKWARD, "Sigmoid")   \
    O(isnan, INPUT, predicate, unary, none, ISNAN, NONE, "IsNaN")                           \
    O(isinf, INPUT, predicate, unary, none, ISINF, NONE, "IsInf")                           \
    O(equal, ANY, equal, binary, none, EQUAL, NONE, "Equal")                                \
    O(scale_loss, LOSS, unary, scale_loss, linear_unary, MUL_SLOT, MUL_SLOT, "Mul")         \
    O(matmul, LOW, matmul, matmul, matmul, NONE, NONE, "MatMul")                            \
    O(linear, LOW, linear, linear, linear, NONE, NONE, "Gemm")                              \
    O(sum, FP32, reduce, reduce, reduce, SUM, NONE, "ReduceSum")                            \
    O(mean, FP32, reduce, reduce, reduce, MEAN, NONE, "ReduceMean")                         \
    O(max, INPUT, reduce, max, max, MAX, NONE, "ReduceMax")                                 \
    O(argmax, INPUT, argmax, argmax, none, NONE, NONE, "ArgMax")                            \
    O(softmax, FP32, softmax, softmax, softmax, SOFTMAX, SOFTMAX, "Softmax")                \
    O(log_softmax, FP32, softmax, softmax, softmax, LOG_SOFTMAX, LOG_SOFTMAX, "LogSoftmax") \
    O(dropout, INPUT, unary, dropout, dropout, NONE, NONE, "Dropout")                       \
    O(reshape, ANY, reshape, reshape, reshape, NONE, NONE, "Reshape")                       \
    O(permute, ANY, permute, none, permute, NONE, NONE, "Transpose")                        \
    O(slice, ANY, slice, none, slice, NONE, NONE, "Slice")                                  \
    O(expand, ANY, expand, none, expand, NONE, NONE, "Expand")                              \
    O(clone, ANY, unary, copy, pass, NONE, NONE, "Identity")                                \
    O(cast, ANY, cast, copy, pass, NONE, NONE, "Cast")                                      \
    O(cat, INPUT, cat, cat, cat, NONE, NONE, "Concat")                                      \
    O(nll_loss, LOSS, nll, nll, nll, NONE, NONE, "NegativeLogLikelihoodLoss")               \
    O(cross_entropy, LOSS, nll, cross_entropy, cross_entropy, NONE, NONE,                   \
      "SoftmaxCrossEntropyLoss")                                                            \
    O(mse_loss, LOSS, mse, mse, mse, NONE, NONE, "")                                        \
    O(user, ANY, user, user, user, NONE, NONE, "")

typedef enum mpt__op_id {
    MPT__OP_none,
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) MPT__OP_##id,
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
        MPT__OP_COUNT
} mpt__op_id;

/* The functions of the table; each is defined in one of the rooms that follow. */
#define MPT__SHAPES(F)                                                                         \
    F(binary)                                                                                  \
    F(unary)                                                                                   \
    F(predicate)                                                                               \
    F(equal)                                                                                   \
    F(matmul)                                                                                  \
    F(linear)                                                                                  \
    F(reduce)                                                                                  \
    F(argmax) F(softmax) F(reshape) F(permute) F(slice) F(expand) F(cast) F(cat) F(nll) F(mse) \
        F(user)
#define MPT__FORWARDS(F)                                                                     \
    F(binary)                                                                                \
    F(unary)                                                                                 \
    F(unary_keep_in)                                                                         \
    F(unary_keep_out)                                                                        \
    F(matmul)                                                                                \
    F(linear)                                                                                \
    F(reduce)                                                                                \
    F(max) F(argmax) F(softmax) F(dropout) F(reshape) F(copy) F(cat) F(nll) F(cross_entropy) \
        F(mse) F(user) F(scale_loss)
#define MPT__BACKWARDS(F)                                                                     \
    F(add)                                                                                    \
    F(sub)                                                                                    \
    F(mul)                                                                                    \
    F(div)                                                                                    \
    F(pass)                                                                                   \
    F(linear_unary)                                                                           \
    F(unary)                                                                                  \
    F(matmul) F(linear) F(reduce) F(max) F(softmax) F(dropout) F(reshape) F(permute) F(slice) \
        F(expand) F(cat) F(nll) F(cross_entropy) F(mse) F(user)
#define MPT__DECLARE(name) static mpt_status mpt__##name##_shape(mpt__frame *frame);
MPT__SHAPES(MPT__DECLARE)
#undef MPT__DECLARE
#define MPT__DECLARE(name) static mpt_status mpt__##name##_forward(mpt__frame *frame);
MPT__FORWARDS(MPT__DECLARE)
#undef MPT__DECLARE
#define MPT__DECLARE(name) static mpt_status mpt__##name##_backward(mpt__frame *frame);
MPT__BACKWARDS(MPT__DECLARE)
#undef MPT__DECLARE
#define mpt__none_forward NULL
#define mpt__none_backward NULL

static const mpt__op_row mpt__op_rows[MPT__OP_COUNT] = {
    {"none", "", MPT__POLICY_ANY, NULL, NULL, NULL, MPT__FN_NONE, MPT__FN_NONE},
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) \
    {#id,                                                                     \
     onnx,                                                                    \
     MPT__POLICY_##policy,                                                    \
     mpt__##shape##_shape,                                                    \
     mpt__##forward##_forward,                                                \
     mpt__##backward##_backward,                                              \
     MPT__FN_##fn,                                                            \
     MPT__FN_##backward_fn},
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
};

static const mpt__op_row *mpt__op_row_of(int op) { return &mpt__op_rows[op]; }

/* ==== The policy table as text ==== */

static const char *const mpt__policy_names[] = {"any dtype, unchanged", "input dtype (mixed: f32)",
                                                "f16 / bf16", "f32", "f32 always"};

MPTRAIN_API size_t mpt_autocast_policy(char *text, size_t size) {
    if (!text) size = 0;
    size_t need = mpt__format_text(text, size, "mptrain autocast policy, version 1\n");
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        char *at = need < size ? text + need : NULL;
        need += mpt__format_text(at, at ? size - need : 0, "%s: %s\n", mpt__op_rows[op].name,
                                 mpt__policy_names[mpt__op_rows[op].policy]);
    }
    return need;
}

static void mpt__attributes_clear(mpt__attributes *attributes) {
    static const mpt__attributes none = {{0.0, 0.0}, {0}, 0, 0, 0, 0};
    *attributes = none;
}

static mpt_dtype mpt__loss_dtype(const mpt__frame *frame) {
    return frame->in[0] && frame->in[0]->dtype == MPT_F64 ? MPT_F64 : MPT_F32;
}

#endif
