/* bench_mlp.c: whole training steps: forward, loss, backward, scaler, optimizer, as in
   examples/mnist.c, on batches that lie in memory. Precisions take turns; each is compared with
   fp32 of the same repetition.
       bench_mlp [seconds per sample, 0.1]
       bench_mlp --serve    subjects for a driver:
           mlp SIZES BATCH fp32|bf16|fp16|half sgd|adamw THREADS [LEVEL]    SIZES: 784-128-64-10 */
#include "measure.h"
#include "training.h"

static mpt_isa find_isa(const char *name) {
    for (int isa = MPT_ISA_AUTO; isa < MPT_ISA_UNKNOWN; isa++)
        if (strcmp(mpt_isa_name((mpt_isa)isa), name) == 0) return (mpt_isa)isa;
    return MPT_ISA_AUTO;
}

/* SIZES BATCH PRECISION OPTIMIZER THREADS [LEVEL] */
static bool make_training(subject *s, int argc, char **argv, char *error, size_t size) {
    int64_t sizes[MAX_LAYERS + 1];
    int layers = argc >= 5 ? parse_sizes(argv[0], sizes) : 0;
    const precision *p = argc >= 5 ? find_precision(argv[2]) : NULL;
    mpt_config config = mpt_config_default();
    snprintf(error, size, "expected SIZES BATCH PRECISION OPTIMIZER THREADS [LEVEL]");
    if (layers < 1 || !p) return false;
    config.threads = atoi(argv[4]);
    if (argc > 5) config.isa = find_isa(argv[5]);
    bool adamw = strcmp(argv[3], "adamw") == 0;
    training *t = training_new(&config, sizes, layers, atoll(argv[1]), p, adamw);
    snprintf(error, size, "%s", t ? "" : mpt_error(NULL));
    if (!t) return false;
    s->run = training_step, s->end = training_end, s->self = t, s->context = t->context;
    for (int i = 0; i < layers; i++)
        s->work += (i > 0 ? 6.0 : 4.0) * (double)(sizes[i] * sizes[i + 1]) * atof(argv[1]);
    return true;
}

/* ==== The table ==== */

typedef struct setting {
    const char *sizes, *batch, *optimizer, *threads;
} setting;

static const setting settings[] = {{"784-128-64-10", "64", "sgd", "1"},
                                   {"784-128-64-10", "64", "sgd", "2"},
                                   {"784-128-64-10", "64", "adamw", "1"},
                                   {"784-128-64-10", "64", "adamw", "2"},
                                   {"1024-4096-4096-1024", "256", "adamw", "1"},
                                   {"1024-4096-4096-1024", "256", "adamw", "2"},
                                   {"8-16-4", "1", "sgd", "1"},
                                   {"8-16-4", "1", "adamw", "1"}};

/* One line for people, and one line per precision, after a tab, for programs. */
static void print_setting(const setting *c, subject **subjects, const repetitions *r) {
    const char *isa = mpt_isa_name(mpt_get_isa(subjects[0]->context));
    char note[80];
    bool slower = measure_ratio(r, 0, 1) < 1.05 && strcmp(isa, "amx") != 0;
    printf("%-20s %5s %-5s %2sT", c->sizes, c->batch, c->optimizer, c->threads);
    for (int p = 0; p < PRECISIONS; p++)
        printf(" %9.1f (%5.2f)", 1.0 / r->median[p], measure_ratio(r, 0, p));
    measure_note(r, note, sizeof note);
    printf("  %s%s\n", note, slower ? "; at this level half saves memory, not time" : "");
    for (int p = 0; p < PRECISIONS; p++) {
        training *t = (training *)subjects[p]->self;
        if (mpt_failed(t->context)) printf("\t%s: %s\n", precisions[p].name, mpt_error(t->context));
        printf("\tmlp sizes=%s batch=%s precision=%s optimizer=%s threads=%s isa=%s "
               "us_per_step=%.3f steps_per_s=%.1f gflops=%.1f vs_fp32=%.3f kept=%d slow=%d "
               "mixed=%d\n",
               c->sizes, c->batch, precisions[p].name, c->optimizer, c->threads, isa,
               1e6 * r->median[p], 1.0 / r->median[p], 1e-9 * subjects[p]->work / r->median[p],
               measure_ratio(r, 0, p), r->kept, r->slow, r->discarded);
    }
}

static int table(double seconds) {
    measure_print_machine();
    printf("steps/s (times own fp32); 1T: CPU time, 2T: wall clock; medians of %d repetitions\n",
           (int)MEASURE_REPETITIONS);
    printf("%-20s %5s %-5s %3s", "sizes", "batch", "", "");
    for (int p = 0; p < PRECISIONS; p++) printf("%10s %7s", precisions[p].name, "");
    printf("\n");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const setting *c = &settings[i];
        subject subjects[PRECISIONS], *turns[PRECISIONS];
        repetitions r;
        for (int p = 0; p < PRECISIONS; p++) {
            const char *words[] = {"mlp",        c->sizes,  c->batch, precisions[p].name,
                                   c->optimizer, c->threads};
            static const subject_maker makers[] = {{"mlp", make_training}, {NULL, NULL}};
            char text[6][32], *argv[6];
            for (int w = 0; w < 6; w++) {
                snprintf(text[w], sizeof text[w], "%s", words[w]);
                argv[w] = text[w];
            }
            turns[p] = &subjects[p];
            if (!serve_make(turns[p], makers, 6, argv)) return 1;
        }
        measure_alternating(turns, PRECISIONS, seconds, atoi(c->threads), &r);
        print_setting(c, turns, &r);
        fflush(stdout);
        for (int p = 0; p < PRECISIONS; p++) subjects[p].end(subjects[p].self);
    }
    return 0;
}

int main(int argc, char **argv) {
    static const subject_maker makers[] = {{"mlp", make_training}, {NULL, NULL}};
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    return table(argc > 1 ? atof(argv[1]) : 0.1);
}
