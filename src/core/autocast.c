/* ----
 * core/autocast.c: which precision an op runs in, and the cast forms of weights.
 *
 * One policy for all devices. Kernels convert on load and round once on store, so a policy only has
 * to choose two dtypes: the one that GEMM rounds its inputs to, and that of the result. No cast
 * tensor is ever made for an activation, and the original is what backward saves.
 * ---- */
#ifndef MPT__CORE_AUTOCAST_INCLUDED
#define MPT__CORE_AUTOCAST_INCLUDED

#include "core/tensor.c"

static mpt_status mpt__autocast_open(
    mpt_context *ctx, const char *name, mpt_dtype dtype, bool narrow) {
    if (!mpt__enter(ctx, name)) return mpt__status_of(ctx);
    if (dtype != MPT_F16 && dtype != MPT_BF16 && dtype != MPT_F32)
        return mpt__error(ctx, DTYPE,
            "expected MPT_F16, MPT_BF16, or MPT_F32 for a region without casting, got %D", dtype);
    if (ctx->autocast_depth == MPT__MAX_REGIONS)
        return mpt__error(
            ctx, STATE, "%d autocast regions are open; end some", (int)MPT__MAX_REGIONS);
    ctx->autocast[++ctx->autocast_depth] = (uint8_t)dtype;
    ctx->narrow[ctx->autocast_depth] = narrow;
    return MPT_OK;
}

mpt_status mpt_autocast_begin(mpt_context *ctx, mpt_dtype dtype) {
    return mpt__autocast_open(ctx, "mpt_autocast_begin", dtype, false);
}

mpt_status mpt_autocast_begin_narrow(mpt_context *ctx, mpt_dtype dtype) {
    return mpt__autocast_open(ctx, "mpt_autocast_begin_narrow", dtype, true);
}

/* ==== The decision ==== */

/* Of losses: fp32, or fp64 in the double-precision test build. */
static mpt_dtype mpt__loss_dtype(const mpt__frame *frame) {
    return frame->in[0] && frame->in[0]->dtype == MPT_F64 ? MPT_F64 : MPT_F32;
}

static MPT__FORCE_INLINE mpt_dtype mpt__autocast_dtype(const mpt_context *ctx) {
    return (mpt_dtype)ctx->autocast[ctx->autocast_depth];
}
/* Where floats of different dtypes meet in a region. */
static mpt_dtype mpt__meeting_dtype(const mpt_context *ctx) {
    return ctx->narrow[ctx->autocast_depth] ? mpt__autocast_dtype(ctx) : MPT_F32;
}
/* Whether floats of different dtypes meet at all. They do in every region, even one that casts
   nothing: a module that is kept out of half still gets what others made. */
static bool mpt__promotes(const mpt_context *ctx) { return ctx->autocast_depth > 0; }

/* Dtypes that arithmetic runs in. fp64 is storage only, except in the double-precision test
   build. */
static bool mpt__dtype_computes(mpt_dtype dtype) {
    if (dtype == MPT_F64) return sizeof(mpt__real) == sizeof(double);
    return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* Where an input's dtype comes from, for messages. */
static void mpt__describe_input(
    mpt_context *ctx, const mpt__tensor *tensor, int number, char *text, size_t size) {
    const char *dtype = mpt_dtype_name((mpt_dtype)tensor->dtype);
    if (tensor->parameter) {
        mpt__format_text(text, size, "argument %d (parameter %s) is %s", number,
            ctx->parameters[tensor->parameter - 1].path, dtype);
    } else if (tensor->record) {
        mpt__format_text(text, size, "argument %d (result of %s) is %s", number,
            ctx->ops[tensor->record->op].name, dtype);
    } else {
        mpt__format_text(text, size, "argument %d is %s", number, dtype);
    }
}

static mpt_status mpt__dtype_mismatch(mpt__frame *frame, int a, int b) {
    char first[160], second[160];
    bool casts = !mpt__promotes(frame->context) && /* a region would bring them together */
        mpt__dtype_computes((mpt_dtype)frame->in[a]->dtype) &&
        mpt__dtype_computes((mpt_dtype)frame->in[b]->dtype);
    mpt__describe_input(frame->context, frame->in[a], a + 1, first, sizeof first);
    mpt__describe_input(frame->context, frame->in[b], b + 1, second, sizeof second);
    return mpt__error(frame->context, DTYPE, "%s, %s; %smpt_cast one of them", first, second,
        casts ? "open mpt_autocast_begin around the call or " : "");
}

/* An error where no arithmetic runs in the dtype of an input. */
static MPT__NOINLINE mpt_status mpt__input_computes(mpt__frame *frame, int i) {
    char text[160];
    if (mpt__dtype_computes((mpt_dtype)frame->in[i]->dtype)) return MPT_OK;
    mpt__describe_input(frame->context, frame->in[i], i + 1, text, sizeof text);
    return mpt__error(
        frame->context, DTYPE, "%s, which this op does not compute in; mpt_cast it to f32", text);
}

/* For inputs that meet as they are: of one dtype or, in a region, floats. */
static mpt_status mpt__dtypes_meet(mpt__frame *frame, int a, int b) {
    mpt_dtype first = (mpt_dtype)frame->in[a]->dtype, second = (mpt_dtype)frame->in[b]->dtype;
    if (first == second || (mpt__promotes(frame->context) && mpt__dtype_computes(first) &&
                            mpt__dtype_computes(second)))
        return MPT_OK;
    return mpt__dtype_mismatch(frame, a, b);
}

/* The dtype that all inputs share, or where they differ inside a region, meet in. An optional input
   beside two or more others is a mask, of any dtype. */
static MPT__NOINLINE mpt_status mpt__common_dtype(mpt__frame *frame, mpt_dtype *common) {
    int first = -1, other = -1;
    *common = MPT_F32;
    for (int i = 0; i < frame->n_in; i++) {
        if (!frame->in[i] || (frame->attributes->required > 2 && i >= frame->attributes->required))
            continue;
        mpt_dtype dtype = (mpt_dtype)frame->in[i]->dtype;
        if (mpt__input_computes(frame, i) != MPT_OK) return mpt__outcome(frame);
        if (first < 0) first = i, *common = dtype;
        if (other < 0 && dtype != *common) other = i;
    }
    if (other < 0) return MPT_OK;
    *common = mpt__meeting_dtype(frame->context);
    return mpt__promotes(frame->context) ? MPT_OK : mpt__dtype_mismatch(frame, first, other);
}

static mpt_status mpt__policy_dtype(mpt__frame *frame) {
    mpt_dtype low = mpt__autocast_dtype(frame->context);
    bool region = low != MPT_F32;
    mpt_dtype result = MPT_F32;
    const int policy = frame->row->policy;
    mpt_status status = MPT_OK;
    const unsigned computing = 1u << MPT_F32 | 1u << MPT_F16 | 1u << MPT_BF16;
    if (region && !(frame->dtypes & ~computing)) { /* most calls; fp32 is preset */
        if (policy == MPT__POLICY_LOW) frame->out_dtype[0] = frame->compute = low;
        if (policy == MPT__POLICY_LOW || policy == MPT__POLICY_FP32) return MPT_OK;
    }
    if (policy == MPT__POLICY_ANY)
        result = frame->in[0] ? (mpt_dtype)frame->in[0]->dtype : MPT_F32;
    else if (policy == MPT__POLICY_LOSS)
        result = mpt__loss_dtype(frame);
    else if (frame->dtypes != 1u << MPT_F32)
        status = mpt__common_dtype(frame, &result);
    bool casts = region && result != MPT_F64;
    if (casts && policy == MPT__POLICY_FP32) result = MPT_F32;
    if (casts && policy == MPT__POLICY_LOW) result = frame->compute = low;
    frame->out_dtype[0] = result;
    return status;
}

/* ==== Forms of weights ==== */

/* A form is a cast of a tree's whole block, made on first use, shared by forward and backward of
   all its layers. The version of the values tells whether it is stale. An update writes the form
   that was in use along with the values; other changes leave it to be made anew. */
static MPT__NOINLINE uint32_t mpt__form_new(
    mpt_context *ctx, mpt__block *block, mpt_dtype dtype, uint32_t version) {
    int which = dtype == MPT_BF16;
    ctx->counters.form_misses++;
    if (!block->form[which]) {
        block->form[which] =
            mpt__storage_new(ctx, block->numel * 2, MPT_MEMORY_FORM, MPT__FROM_DEVICE, false);
        if (!block->form[which]) return 0;
    }
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_COPY);
    mpt__operand_on(launch, 0, block->values, (mpt_dtype)block->dtype, 0, block->numel, MPT__READ);
    mpt__operand_on(launch, 1, block->form[which], dtype, 0, block->numel, MPT__WRITE);
    if (mpt__submit(ctx, launch) != MPT_OK) return 0;
    block->form_version[which] = version;
    return block->form[which];
}

/* The form of a parameter; 0 on error. */
static MPT__NOINLINE uint32_t mpt__parameter_form(
    mpt_context *ctx, const mpt__tensor *tensor, mpt_dtype dtype) {
    mpt__block *block = &ctx->blocks[ctx->parameters[tensor->parameter - 1].block];
    int which = dtype == MPT_BF16;
    uint32_t version = ctx->storages[block->values].version;
    block->form_read[which] = true;
    if (!block->form[which] || block->form_version[which] != version)
        return mpt__form_new(ctx, block, dtype, version);
    ctx->counters.form_hits++;
    return block->form[which];
}

/* The form for an update to write: up to date, and read since the last one. -1: none. */
static int mpt__form_in_use(const mpt_context *ctx, const mpt__block *block) {
    uint32_t version = ctx->storages[block->values].version;
    for (int i = 0; i < 2; i++)
        if (block->form[i] && block->form_read[i] && block->form_version[i] == version) return i;
    return -1;
}

/* Where GEMM reads a tensor: a parameter from its cast form where the call rounds to one, at the
   same offset and strides. Comes before the GEMM's launch is begun: making the form is another. */
typedef struct {
    uint32_t storage;
    uint8_t dtype;
} mpt__source;

static MPT__FORCE_INLINE bool mpt__gemm_source(
    mpt_context *ctx, const mpt__tensor *tensor, mpt_dtype compute, mpt__source *source) {
    source->storage = tensor->storage;
    source->dtype = tensor->dtype;
    if (compute == MPT_F32 || !tensor->parameter || (mpt_dtype)tensor->dtype != MPT_F32)
        return true;
    source->storage = mpt__parameter_form(ctx, tensor, compute);
    source->dtype = (uint8_t)compute;
    return source->storage != 0;
}

#endif
