/* gpt.c - a GPT-2 of any size: learns to continue a text, and then writes some.
 *
 * Pre-norm blocks of causal attention and a GELU layer, positions learned, the output tied to the
 * embedding. Logits of the whole vocabulary never exist at once, nor does a table of T x T scores.
 * Tokens are bytes, or with --tokens those of GPT-2. Without --text it learns a sonnet by heart.
 *
 *     gpt --tokens gpt2 --weights gpt2/model.safetensors --layers 12 --heads 12 --width 768
 *         --context 1024 --steps 0 --prompt "The meaning of life is"
 *
 * test arguments: --layers 2 --width 32 --context 32 --batch 8 --steps 30 --write 20 --top-p 0.9 */
#define EXAMPLE_GOES_ON
#include "common.h"
#include "gpt.h"
#include "precisions.h"
#include "text.h"

static mpt_tensor loss_of(mpt_module net, const mpt_batch *b, mpt_tensor positions) {
    return mpt_linear_cross_entropy(hidden(net, b->x, positions), mpt_parameter(net, "wte.weight"),
                                    b->y, NULL);
}

/* Continues the prompt, a token at a time. A full context loses its older half. */
static void write_text(mpt_context *ctx, mpt_module net, const gpt_settings *s,
                       const text_codec *codec) {
    int64_t seen[8192], length = 0;
    int32_t *prompt = NULL;
    const int64_t n = codec_encode(codec, s->prompt, strlen(s->prompt), &prompt);
    candidates c = {NULL, NULL, s->top_k < s->vocabulary ? s->top_k : s->vocabulary};
    c.p = (float *)calloc((size_t)c.count, sizeof *c.p);
    c.token = (int64_t *)calloc((size_t)c.count, sizeof *c.token);
    const bool ready = c.p && c.token && n > 0;
    for (int64_t i = n > s->context ? n - s->context : 0; i < n; i++) seen[length++] = prompt[i];
    if (!s->uncached) mpt_cache_begin(net, 1, s->context);
    const double start = seconds_now();
    for (int64_t i = 0; ready && i < s->write && !mpt_failed(ctx); i++) {
        mpt_autocast_begin(ctx, precisions[s->precision].autocast);
        const int64_t token = next_token(ctx, net, s, seen, length, &c);
        mpt_autocast_end(ctx);
        codec_put(codec, (int32_t)token);
        fflush(stdout);
        if (length == s->context) {
            length -= s->context / 2;
            memmove(seen, seen + s->context / 2, (size_t)length * sizeof *seen);
            if (!s->uncached) mpt_cache_rewind(net, 0);
        }
        seen[length++] = token;
    }
    if (s->write > 0)
        printf("\n%.1f tokens per second\n", (double)s->write / (seconds_now() - start));
    mpt_cache_end(net);
    free(prompt);
    free(c.p);
    free(c.token);
}

static int train(mpt_context *ctx, const gpt_settings *s, const text_codec *codec,
                 const int32_t *tokens, int64_t count) {
    const int64_t kept = count > 40 * s->context ? count / 10 : 0; /* to measure with; or all */
    const int64_t block = s->context < count ? s->context : count - 1;
    const precision *p = &precisions[s->precision];
    mpt_loader loader =
        text_windows(ctx, block, s->batch, (s->steps + 1) * s->batch, tokens, count - kept);
    mpt_loader tests = text_windows(ctx, block, s->batch, 0,
                                    tokens + (kept ? count - kept : 0), kept ? kept : count);
    mpt_module net = make_gpt(ctx, s);
    if (s->weights) gpt_load(net, s->weights, NULL);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr, adamw.weight_decay = 0.1;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_warmup(optimizer, 0.01, s->steps / 20 + 1, s->steps + 1, s->lr / 10, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    mpt_tensor positions = mpt_arange(ctx, MPT_I64, block);
    if (mpt_failed(ctx)) return fail_with_error("gpt", ctx);
    printf("%lld parameters, %lld tokens of text, %s\n", (long long)mpt_parameter_numel(net),
           (long long)count, p->name);

    progress bar = progress_begin("", true, 0, s->steps);
    progress_resume(&bar, ctx);
    mpt_batch b;
    while (progress_goes_on(&bar, ctx) && mpt_loader_next(loader, &b)) {
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
        progress_step(&bar, ctx, scaler);
    }
    const int status = progress_end(&bar, ctx, "gpt");
    if (status != 0) return status;
    progress_clear(&bar);
    write_text(ctx, net, s, codec);
    if (s->steps > 0 && s->save) mpt_save(net, s->save);
    mpt_metric_reset(ctx, "loss");
    mpt_inference_begin(ctx);
    while (mpt_loader_next(tests, &b)) {
        mpt_scope_begin(ctx);
        mpt_metric_push(ctx, "loss", loss_of(net, &b, positions));
        mpt_scope_end(ctx);
    }
    mpt_inference_end(ctx);
    if (mpt_failed(ctx)) return fail_with_error("gpt", ctx);
    printf("%s: %.4f nats per token, %.0f tokens per second\n",
           kept ? "Text that was kept out" : "The text", mpt_metric_mean(ctx, "loss", true),
           progress_speed(&bar) * (double)(s->batch * s->context));
    return write_results(ctx, &bar, scaler, "loss", mpt_metric_mean(ctx, "loss", true));
}

int main(int argc, char **argv) {
    gpt_settings s = gpt_defaults;
    char error[256];
    int32_t *tokens = NULL;
    int status;
    if (!options_parse(gpt_rows, GPT_ROWS, argc, argv, &s, error, sizeof error))
        return fail("gpt", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("gpt", gpt_rows, GPT_ROWS, stdout), 0;
    mpt_config config = default_config("gpt");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("gpt", NULL);
    const text_codec codec = codec_open(ctx, s.tokens);
    const int64_t count = mpt_failed(ctx) ? 0 : codec_read(&codec, s.text, &tokens);
    s.vocabulary = codec.vocabulary;
    if (mpt_failed(ctx))
        status = fail_with_error("gpt", ctx);
    else if (count < 0)
        status = fail("gpt", EXIT_BAD_INPUT, "%s: cannot be opened", s.text);
    else if (count <= s.context && (s.steps > 0 || count < 2))
        status = fail("gpt", EXIT_BAD_INPUT, "%s: %lld tokens could be read, --context needs more",
                      s.text ? s.text : "the sonnet", (long long)count);
    else
        status = train(ctx, &s, &codec, tokens, count);
    mpt_destroy(ctx);
    free(tokens);
    return status;
}
