/* bert.c - a BERT of any size: learns to fill in bytes of a text that were masked.
 *
 * Of each text 15 % of the bytes are to be guessed: 80 % of those are masked, 10 % become other
 * bytes, 10 % stay; ops draw them. Without --text it learns a sonnet of Shakespeare's.
 * test arguments: --layers 1 --width 32 --heads 2 --length 32 --batch 8 --steps 30 */
#define EXAMPLE_GOES_ON
#include "common.h"

#include "bert.h"
#include "precisions.h"
#include "text.h"

enum { MASK = 256, VOCABULARY = 257 };

typedef struct settings {
    int64_t layers, heads, width, length, batch, steps, precision, seed;
    double lr;
    const char *text, *weights, *save;
    bool help;
} settings;

static const option_row rows[] = {
    {"--text", OPTION_TEXT, offsetof(settings, text), NULL, 0, 0, "a file to learn from"},
    {"--weights", OPTION_TEXT, offsetof(settings, weights), NULL, 0, 0,
     "a safetensors file to start from"},
    {"--save", OPTION_TEXT, offsetof(settings, save), NULL, 0, 0,
     "a safetensors file for what was learned"},
    {"--layers", OPTION_INT, offsetof(settings, layers), NULL, 1, TRANSFORMER_BLOCKS, "default 4"},
    {"--heads", OPTION_INT, offsetof(settings, heads), NULL, 1, 64, "default 4"},
    {"--width", OPTION_INT, offsetof(settings, width), NULL, 8, 4096, "default 128"},
    {"--length", OPTION_INT, offsetof(settings, length), NULL, 8, 8192, "bytes, default 128"},
    {"--batch", OPTION_INT, offsetof(settings, batch), NULL, 1, 4096, "default 16"},
    {"--steps", OPTION_INT, offsetof(settings, steps), NULL, 1, 1000000, "default 300"},
    {"--lr", OPTION_NUMBER, offsetof(settings, lr), NULL, 0, 0, "default 1e-3"},
    {"--precision", OPTION_CHOICE, offsetof(settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--seed", OPTION_INT, offsetof(settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows };

/* The loss of guessing what was masked in texts x [B, T]; *accuracy is how much was right. */
static mpt_tensor masked_loss(mpt_module net, mpt_tensor x, mpt_tensor positions, mpt_tensor types,
                              mpt_tensor *accuracy) {
    mpt_context *ctx = x.context;
    const mpt_shape shape = mpt_get_shape(x);
    mpt_tensor draw = mpt_rand(ctx, MPT_F32, shape), chosen = mpt_lt_scalar(draw, 0.15);
    mpt_tensor any = mpt_mul_scalar(mpt_rand(ctx, MPT_F32, shape), 256.0); /* rounded down below */
    mpt_tensor given = mpt_where(mpt_lt_scalar(draw, 0.135), any, mpt_cast(x, MPT_F32));
    mpt_tensor mask = mpt_full(ctx, MPT_F32, MPT_SCALAR, MASK);
    mpt_tensor ids = mpt_cast(mpt_where(mpt_lt_scalar(draw, 0.12), mask, given), MPT_I64);
    mpt_tensor none = mpt_full(ctx, MPT_F32, MPT_SCALAR, -100);
    mpt_tensor targets = mpt_cast(mpt_where(chosen, mpt_cast(x, MPT_F32), none), MPT_I64);
    mpt_tensor logits = bert_logits(net, ids, positions, types);
    mpt_tensor right = mpt_logical_and(chosen, mpt_equal(mpt_argmax(logits, -1, false), x));
    mpt_tensor count = mpt_sum(mpt_cast(chosen, MPT_F32), MPT_ALL_DIMS, false);
    count = mpt_clamp(count, 1.0, 1e9); /* of a short text maybe none was chosen */
    *accuracy = mpt_div(mpt_sum(mpt_cast(right, MPT_F32), MPT_ALL_DIMS, false), count);
    mpt_nll_config sum = mpt_nll_config_default();
    sum.reduction = MPT_SUM;
    return mpt_div(mpt_cross_entropy(mpt_flatten(logits, 0, 1), mpt_flatten(targets, 0, 1), &sum),
                   count);
}

static int train(mpt_context *ctx, const settings *s, const int32_t *tokens, int64_t count) {
    const int64_t kept = count > 40 * s->length ? count / 10 : 0; /* to measure with; or all */
    const precision *p = &precisions[s->precision];
    const bert_shape shape = {s->width,  s->layers,  s->heads, 4 * s->width,
                              s->length, VOCABULARY, 2};
    mpt_loader loader =
        text_windows(ctx, s->length, s->batch, s->steps * s->batch, tokens, count - kept);
    mpt_loader tests = text_windows(ctx, s->length, s->batch, 0, tokens + (kept ? count - kept : 0),
                                    kept ? kept : count);
    mpt_module net = make_bert(ctx, &shape);
    if (s->weights) bert_load(net, s->weights, NULL);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_warmup(optimizer, 0.01, s->steps / 10 + 1, s->steps + 1, s->lr / 10, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    mpt_tensor positions = mpt_arange(ctx, MPT_I64, s->length), right;
    mpt_tensor types = mpt_zeros(ctx, MPT_I64, MPT_SHAPE(s->length));
    if (mpt_failed(ctx)) return fail_with_error("bert", ctx);
    printf("%lld parameters, %lld bytes of text, %s\n", (long long)mpt_parameter_numel(net),
           (long long)count, p->name);

    progress bar = progress_begin("", true, 0, s->steps);
    progress_resume(&bar, ctx);
    mpt_batch b;
    while (progress_goes_on(&bar, ctx) && mpt_loader_next(loader, &b)) {
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, p->autocast);
        mpt_tensor loss = masked_loss(net, b.x, positions, types, &right);
        mpt_autocast_end(ctx);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);
        mpt_clip_grad_norm(optimizer, 1.0);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
    }
    const int status = progress_end(&bar, ctx, "bert");
    if (status != 0) return status;
    progress_clear(&bar);
    if (s->save) mpt_save(net, s->save);
    mpt_inference_begin(ctx);
    for (mpt_metric_reset(ctx, "loss"); mpt_loader_next(tests, &b);) {
        mpt_scope_begin(ctx);
        mpt_metric_push(ctx, "loss", masked_loss(net, b.x, positions, types, &right));
        mpt_metric_push(ctx, "right", right);
        mpt_scope_end(ctx);
    }
    mpt_inference_end(ctx);
    if (mpt_failed(ctx)) return fail_with_error("bert", ctx);
    printf("%s: %.4f nats per masked byte, %.1f %% of them right, %.0f bytes per second\n",
           kept ? "Text that was kept out" : "The text", mpt_metric_mean(ctx, "loss", true),
           100.0 * mpt_metric_mean(ctx, "right", true),
           progress_speed(&bar) * (double)(s->batch * s->length));
    return write_results(ctx, &bar, scaler, "loss", mpt_metric_mean(ctx, "loss", true));
}

int main(int argc, char **argv) {
    settings s = {4, 4, 128, 128, 16, 300, 2, 0, 1e-3, NULL, NULL, NULL, false};
    const text_codec bytes = codec_open(NULL, NULL);
    char error[256];
    int32_t *tokens = NULL;
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("bert", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("bert", rows, ROWS, stdout), 0;
    const int64_t count = codec_read(&bytes, s.text, &tokens);
    if (count < 0) return fail("bert", EXIT_BAD_INPUT, "%s: cannot be opened", s.text);
    if (count <= s.length)
        return fail("bert", EXIT_BAD_INPUT, "%s: %lld bytes could be read, --length needs more",
                    s.text ? s.text : "the sonnet", (long long)count);
    mpt_config config = default_config("bert");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    const int status = ctx ? train(ctx, &s, tokens, count) : fail_with_error("bert", ctx);
    mpt_destroy(ctx);
    free(tokens);
    return status;
}
