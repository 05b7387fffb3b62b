/* bench_conv.c: convolutions of residual nets, forward and backward through the public API.
       bench_conv [seconds per sample, 0.2]
       bench_conv --serve    subjects for a driver:
           conv N C H W O KERNEL STRIDE GROUPS PRECISION contiguous|last PASS THREADS
       PASS: forward, both, or forward and one gradient alone: input, weight. */
#include "measure.h"

typedef struct convolution {
    mpt_context *context;
    mpt_tensor x, w, b, dy;
    mpt_conv_config config;
    mpt_dtype dtype;
    bool backward, input, weight;
} convolution;

static void convolution_run(void *self) {
    convolution *c = (convolution *)self;
    mpt_step_begin(c->context);
    if (c->dtype != MPT_F32) mpt_autocast_begin(c->context, c->dtype);
    mpt_tensor y = mpt_conv2d(c->x, c->w, c->b, &c->config);
    if (c->dtype != MPT_F32) mpt_autocast_end(c->context);
    if (c->backward) {
        mpt_backward_from(y, c->dy, false);
        mpt_clear_grad(c->x);
        mpt_clear_grad(c->w);
        mpt_clear_grad(c->b);
    }
    mpt_step_end(c->context);
}

static void convolution_end(void *self) {
    convolution *c = (convolution *)self;
    mpt_destroy(c->context);
    free(c);
}

static bool make_convolution(subject *s, int argc, char **argv, char *error, size_t size) {
    int64_t n[8];
    snprintf(error, size, "expected N C H W O KERNEL STRIDE GROUPS DTYPE LAYOUT PASS THREADS");
    if (argc < 12) return false;
    for (int i = 0; i < 8; i++) n[i] = atoll(argv[i]);
    const int64_t padding = n[5] / 2, oh = (n[2] + 2 * padding - n[5]) / n[6] + 1;
    const int64_t ow = (n[3] + 2 * padding - n[5]) / n[6] + 1;
    const bool last = strcmp(argv[9], "last") == 0;
    mpt_config config = mpt_config_default();
    config.threads = atoi(argv[11]);
    convolution *c = (convolution *)calloc(1, sizeof *c);
    s->run = convolution_run, s->end = convolution_end, s->self = c;
    if (c) s->context = c->context = mpt_create(&config);
    if (!s->context) return false;
    c->config = mpt_conv_config_default();
    for (int d = 0; d < 2; d++) c->config.stride[d] = n[6], c->config.padding[d] = padding;
    c->config.groups = n[7];
    c->input = strcmp(argv[10], "both") == 0 || strcmp(argv[10], "input") == 0;
    c->weight = strcmp(argv[10], "both") == 0 || strcmp(argv[10], "weight") == 0;
    c->backward = c->input || c->weight;
    c->dtype = strcmp(argv[8], "bf16") == 0   ? MPT_BF16
               : strcmp(argv[8], "fp16") == 0 ? MPT_F16
                                              : MPT_F32;
    c->x = mpt_randn(c->context, MPT_F32, MPT_SHAPE(n[0], n[1], n[2], n[3]));
    c->w = mpt_randn(c->context, MPT_F32, MPT_SHAPE(n[4], n[1] / n[7], n[5], n[5]));
    c->b = mpt_randn(c->context, MPT_F32, MPT_SHAPE(n[4]));
    c->dy = mpt_randn(c->context, MPT_F32, MPT_SHAPE(n[0], n[4], oh, ow));
    if (last) c->x = mpt_to_channels_last(c->x), c->w = mpt_to_channels_last(c->w);
    if (last) c->dy = mpt_to_channels_last(c->dy);
    c->x = mpt_cast(c->x, c->dtype), c->dy = mpt_cast(c->dy, c->dtype);
    mpt_requires_grad(c->x, c->input);
    mpt_requires_grad(c->w, c->weight);
    mpt_requires_grad(c->b, c->weight);
    s->work = 2.0 * (double)(n[0] * oh * ow * n[4] * n[1] / n[7] * n[5] * n[5]);
    s->work *= 1 + c->input + c->weight;
    snprintf(error, size, "%s", mpt_error(c->context));
    return !mpt_failed(c->context);
}

static const subject_maker makers[] = {{"conv", make_convolution}, {NULL, NULL}};

/* The layers of a residual net on images of 32 and of 224 pixels, and a depthwise one. */
static const char *const shapes[] = {"32 3 32 32 64 3 1 1",   "32 64 32 32 64 3 1 1",
                                     "32 64 32 32 128 3 2 1", "32 128 16 16 128 3 1 1",
                                     "32 256 8 8 256 3 1 1",  "32 512 4 4 512 3 1 1",
                                     "32 64 32 32 128 1 2 1", "32 256 16 16 64 1 1 1",
                                     "4 3 224 224 64 7 2 1",  "32 128 16 16 128 3 1 128"};

int main(int argc, char **argv) {
    static const char *const kinds[] = {"fp32 contiguous", "fp32 last", "bf16 contiguous",
                                        "bf16 last"};
    enum { KINDS = 4 };
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    measure_print_machine();
    printf("%-26s", "GFLOP/s, one thread");
    for (int k = 0; k < KINDS; k++) printf(" %16s", kinds[k]);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int both = 0; both < 2; both++) {
            subject subjects[KINDS], *turns[KINDS];
            repetitions r;
            for (int k = 0; k < KINDS; k++) {
                char text[160], *words[16];
                int n = 0;
                snprintf(text, sizeof text, "conv %s %s %s 1", shapes[i], kinds[k],
                         both ? "both" : "forward");
                for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) words[n++] = w;
                turns[k] = &subjects[k];
                if (!serve_make(turns[k], makers, n, words)) return 1;
            }
            measure_alternating(turns, KINDS, argc > 1 ? atof(argv[1]) : 0.2, 1, &r);
            printf("\n%-22s %3s", shapes[i], both ? "f+b" : "f");
            for (int k = 0; k < KINDS; k++)
                printf(" %16.1f", 1e-9 * subjects[k].work / r.median[k]);
            fflush(stdout);
            for (int k = 0; k < KINDS; k++) subjects[k].end(subjects[k].self);
        }
    }
    printf("\n");
    return 0;
}
