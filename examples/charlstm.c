/* charlstm.c - an LSTM that learns a text letter by letter, and then writes some.
 *
 * The text is cut into strips that are read side by side, a window at a time. The state is kept
 * from window to window, so that the net remembers what it read long ago, but gradients end there:
 * truncated backpropagation through time. Without --data it learns a sonnet by heart.
 *
 *     charlstm --data novel.txt --hidden 256 --steps 5000 --temperature 0.7
 *
 * test arguments: --steps 60 --hidden 48 --write 40 */
#include "common.h"
#include "text.h"

typedef struct settings {
    int64_t hidden, steps, window, strips, write;
    double temperature;
    const char *data;
    bool help;
} settings;

static const option_row rows[] = {
    {"--data", OPTION_TEXT, offsetof(settings, data), NULL, 0, 0, "a file to learn from"},
    {"--hidden", OPTION_INT, offsetof(settings, hidden), NULL, 1, 8192, "default 128"},
    {"--steps", OPTION_INT, offsetof(settings, steps), NULL, 1, INT32_MAX, "default 500"},
    {"--window", OPTION_INT, offsetof(settings, window), NULL, 1, 4096, "letters, default 64"},
    {"--strips", OPTION_INT, offsetof(settings, strips), NULL, 1, 4096, "default 2"},
    {"--write", OPTION_INT, offsetof(settings, write), NULL, 0, INT32_MAX, "letters, default 600"},
    {"--temperature", OPTION_NUMBER, offsetof(settings, temperature), NULL, 0, 0,
     "below 1 the likeliest letters are likelier still, default 0.5"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows, LETTERS = 256, WIDTH = 32 };

typedef struct model {
    mpt_module letters, lstm, head;
    mpt_tensor state[2]; /* h and c, kept */
    bool begun;
} model;

static void forget(model *net) {
    for (int i = 0; i < 2 && net->begun; i++) mpt_release(net->state[i]);
    net->begun = false;
}

/* letters [T, B] -> what comes next, [T, B, LETTERS]; goes on from the state that it keeps. */
static mpt_tensor read_on(model *net, mpt_tensor letters) {
    mpt_tensor in[3], out[3];
    const bool begun = net->begun;
    in[0] = mpt_forward(net->letters, letters), in[1] = net->state[0], in[2] = net->state[1];
    mpt_forward_n(net->lstm, in, begun ? 3 : 1, out, 3);
    forget(net);
    for (int i = 0; i < 2; i++) net->state[i] = mpt_keep(out[1 + i]); /* without its history */
    net->begun = true;
    return mpt_forward(net->head, out[0]);
}

/* `window` letters of each strip from `at` on, [window, strips]. */
static mpt_tensor letters_at(mpt_context *ctx, const settings *s, const int32_t *text,
                             int64_t strip, int64_t at, int64_t *room) {
    for (int64_t t = 0; t < s->window; t++)
        for (int64_t b = 0; b < s->strips; b++) room[t * s->strips + b] = text[b * strip + at + t];
    return mpt_from(ctx, MPT_I64, MPT_SHAPE(s->window, s->strips), room);
}

/* Returns the loss at the end, as a share of that at the beginning. */
static double train(mpt_context *ctx, model *net, const settings *s, const int32_t *text,
                    int64_t strip, int64_t *room) {
    mpt_adam_config adam = mpt_adam_config_default();
    adam.lr = 5e-3;
    mpt_optimizer optimizer = mpt_adam(net->lstm, &adam);
    mpt_optimizer_add(optimizer, net->letters, NULL, NULL);
    mpt_optimizer_add(optimizer, net->head, NULL, NULL);
    double first = 0, now = 0;
    for (int64_t step = 1, at = 0; step <= s->steps && !mpt_failed(ctx); step++, at += s->window) {
        if (at + s->window >= strip) at = 0, forget(net);
        mpt_step_begin(ctx);
        mpt_tensor y = read_on(net, letters_at(ctx, s, text, strip, at, room));
        mpt_tensor next = letters_at(ctx, s, text, strip, at + 1, room);
        const int64_t count = s->window * s->strips;
        mpt_tensor loss = mpt_cross_entropy(mpt_reshape(y, MPT_SHAPE(count, LETTERS)),
                                            mpt_reshape(next, MPT_SHAPE(count)), NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_clip_grad_norm(optimizer, 1);
        mpt_step(optimizer);
        now = mpt_item(loss);
        if (step == 1) first = now;
        if (step % 50 == 0) printf("step %5d: loss %.3f\n", (int)step, now);
        mpt_step_end(ctx);
    }
    forget(net);
    return now / first;
}

/* Letter after letter, each drawn by its probability to the power of 1 / temperature. */
static void write_text(mpt_context *ctx, model *net, const settings *s, int64_t letter) {
    mpt_inference_begin(ctx);
    if (s->write > 0) putchar((int)letter);
    for (int64_t i = 0; i < s->write && !mpt_failed(ctx); i++) {
        mpt_scope_begin(ctx);
        mpt_tensor y = read_on(net, mpt_from(ctx, MPT_I64, MPT_SHAPE(1, 1), &letter));
        y = mpt_softmax(mpt_mul_scalar(y, 1 / s->temperature), -1);
        letter = (int64_t)mpt_item(mpt_multinomial(y, 1, false));
        putchar((int)letter);
        mpt_scope_end(ctx);
    }
    printf("\n");
    forget(net);
    mpt_inference_end(ctx);
}

int main(int argc, char **argv) {
    settings s = {128, 500, 64, 2, 600, 0.5, NULL, false};
    const text_codec codec = codec_open(NULL, NULL); /* bytes */
    char error[256];
    int32_t *text = NULL;
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("charlstm", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("charlstm", rows, ROWS, stdout), 0;
    const int64_t count = codec_read(&codec, s.data, &text), strip = count / s.strips;
    int64_t *room = (int64_t *)malloc((size_t)(s.window * s.strips) * sizeof *room);
    if (strip <= s.window || !room)
        return fail("charlstm", EXIT_BAD_INPUT,
                    "%s: %d letters, too few for %d strips of more "
                    "than %d",
                    s.data ? s.data : "the sonnet", (int)count, (int)s.strips, (int)s.window);
    mpt_config config = default_config("charlstm");
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("charlstm", NULL);
    model net;
    memset(&net, 0, sizeof net);
    net.letters = mpt_nn_embedding(ctx, LETTERS, WIDTH, -1);
    net.lstm = mpt_nn_lstm(ctx, WIDTH, s.hidden, NULL);
    net.head = mpt_nn_linear(ctx, s.hidden, LETTERS);
    const double share = train(ctx, &net, &s, text, strip, room);
    write_text(ctx, &net, &s, text[0]);
    if (mpt_failed(ctx)) return fail_with_error("charlstm", ctx);
    mpt_destroy(ctx);
    free(text);
    free(room);
    return share < 0.8 ? 0 : 1;
}
