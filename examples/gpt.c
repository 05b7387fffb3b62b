/* gpt.c - a GPT-2 of any size: learns to continue a text, byte by byte, and then writes some.
 *
 * Pre-norm blocks of causal attention and a GELU layer, positions learned, the output tied to the
 * embedding. Logits of the whole vocabulary never exist at once, nor does a table of T x T scores.
 * Without --text it learns a sonnet of Shakespeare's by heart.
 * test arguments: --layers 2 --width 32 --context 32 --batch 8 --steps 30 --write 20 */
#include "common.h"
#include "gpt.h"
#include "precisions.h"
#include "text.h"

static mpt_tensor loss_of(mpt_module net, const mpt_batch *b, mpt_tensor positions) {
    return mpt_linear_cross_entropy(hidden(net, b->x, positions), mpt_parameter(net, "wte.weight"),
                                    b->y, NULL);
}

/* Continues a line end, each byte drawn by its probability to the power of 1 / temperature. */
static void write_text(mpt_context *ctx, mpt_module net, const gpt_settings *s,
                       mpt_tensor positions) {
    int64_t seen[8192] = {'\n'}, length = 1;
    for (int64_t n = 0; n < s->write && !mpt_failed(ctx); n++) {
        float p[BYTES] = {0};
        double sum = 0.0, draw;
        mpt_scope_begin(ctx);
        mpt_inference_begin(ctx);
        mpt_tensor bytes = mpt_from(ctx, MPT_I64, MPT_SHAPE(1, length), seen);
        mpt_tensor y = hidden(net, bytes, mpt_slice(positions, 0, 0, length, 1));
        y = mpt_matmul(mpt_slice(y, 1, length - 1, length, 1),
                       mpt_transpose(mpt_parameter(net, "wte.weight"), 0, 1));
        mpt_read_f32(mpt_softmax(mpt_mul_scalar(y, 1.0 / s->temperature), -1), p, BYTES);
        draw = mpt_item(mpt_rand(ctx, MPT_F32, MPT_SCALAR));
        mpt_inference_end(ctx);
        mpt_scope_end(ctx);
        int byte = 0;
        while (byte < BYTES - 1 && (sum += (double)p[byte]) < draw) byte++;
        putchar(byte);
        if (length == s->context) memmove(seen, seen + 1, (size_t)(--length) * sizeof *seen);
        seen[length++] = byte;
    }
    printf("\n");
}

/* Windows at random places, or, to look back, one beside the other. */
static mpt_loader make_loader(mpt_context *ctx, const gpt_settings *s, const int32_t *tokens,
                              int64_t count, bool random) {
    mpt_window_config windows = mpt_window_config_default();
    mpt_loader_config config = mpt_loader_config_default();
    windows.block = s->context, windows.random = random;
    windows.samples = random ? s->steps * s->batch : 0;
    config.batch = s->batch;
    return mpt_loader_create(ctx, mpt_token_memory(ctx, tokens, count, &windows), &config);
}

static int train(mpt_context *ctx, const gpt_settings *s, const int32_t *tokens, int64_t count) {
    const int64_t kept = count > 40 * s->context ? count / 10 : 0; /* to measure with; or all */
    const precision *p = &precisions[s->precision];
    mpt_loader loader = make_loader(ctx, s, tokens, count - kept, true);
    mpt_loader tests =
        make_loader(ctx, s, tokens + (kept ? count - kept : 0), kept ? kept : count, false);
    mpt_module net = make_gpt(ctx, s);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr, adamw.weight_decay = 0.1;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_warmup(optimizer, 0.01, s->steps / 20 + 1, s->steps + 1, s->lr / 10, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    mpt_tensor positions = mpt_arange(ctx, MPT_I64, s->context);
    if (mpt_failed(ctx)) return fail_with_error("gpt", ctx);
    printf("%lld parameters, %lld bytes of text, %s\n", (long long)mpt_parameter_numel(net),
           (long long)count, p->name);

    progress bar = progress_begin("", true, 1, s->steps);
    mpt_batch b;
    for (bar.epoch = 1; mpt_loader_next(loader, &b) && bar.steps < s->steps;) {
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, p->autocast);
        mpt_tensor loss = loss_of(net, &b, positions);
        mpt_autocast_end(ctx);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);
        mpt_clip_grad_norm(optimizer, 1.0);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler, bar.steps + 1);
    }
    const double seconds = seconds_now() - bar.started;
    progress_clear(&bar);
    mpt_metric_reset(ctx, "loss");
    mpt_inference_begin(ctx);
    while (mpt_loader_next(tests, &b)) mpt_metric_push(ctx, "loss", loss_of(net, &b, positions));
    mpt_inference_end(ctx);
    write_text(ctx, net, s, positions);
    if (mpt_failed(ctx)) return fail_with_error("gpt", ctx);
    printf("%s: %.4f nats per byte, %.0f bytes per second\n",
           kept ? "Text that was kept out" : "The text", mpt_metric_mean(ctx, "loss", true),
           (double)(s->steps * s->batch * s->context) / seconds);
    return write_results(ctx, &bar, scaler, "loss", mpt_metric_mean(ctx, "loss", true));
}

int main(int argc, char **argv) {
    gpt_settings s = gpt_defaults;
    int64_t count = 0;
    char error[256];
    if (!options_parse(gpt_rows, GPT_ROWS, argc, argv, &s, error, sizeof error))
        return fail("gpt", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("gpt", gpt_rows, GPT_ROWS, stdout), 0;
    int32_t *tokens = read_bytes(s.text, s.context + 1, &count);
    if (!tokens)
        return fail("gpt", EXIT_BAD_INPUT, "%s: %lld bytes could be read, --context needs more",
                    s.text ? s.text : "the sonnet", (long long)count);
    mpt_config config = default_config("gpt");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    int status = ctx ? train(ctx, &s, tokens, count) : fail_with_error("gpt", ctx);
    mpt_destroy(ctx);
    free(tokens);
    return status;
}
