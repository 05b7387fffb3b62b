/* bench_profile.c: what the profiler costs: steps a second while it is on, of those without it. The
   ways take turns every few milliseconds in one context; each is compared with none of the same
   round, by CPU time of one thread.
       bench_profile [seconds a row, 3] */
#include "models.h"

enum { WAYS = 3, ROUNDS = 63, SPANS = 20000 }; /* as many rounds as a median takes */
static const char *const ways[WAYS] = {"none", "on", "with spans"};

static void set_way(mpt_context *context, int way) {
    mpt_profile_config config = mpt_profile_config_default();
    config.spans = way == 2 ? SPANS : 0;
    mpt_profile_end(context);
    if (way > 0) mpt_profile_begin(context, &config);
}

/* Seconds of one step, of a few that follow the first one of its way. */
static double time_way(subject *s, int way, long repeat) {
    set_way(s->context, way);
    s->run(s->self);
    const double start = measure_cpu();
    for (long i = 0; i < repeat; i++) s->run(s->self);
    return (measure_cpu() - start) / (double)repeat;
}

static void measure_row(subject *s, const char *name, double seconds) {
    static double taken[WAYS][ROUNDS], ratio[WAYS][ROUNDS];
    const double begin = measure_wall();
    long repeat = 1;
    int rounds = 0;
    for (; time_way(s, 0, repeat) * (double)repeat < 0.004; repeat *= 2) continue;
    while (rounds < ROUNDS && (rounds < 9 || measure_wall() - begin < seconds)) {
        for (int i = 0; i < WAYS; i++) { /* each of them first once in a while */
            const int way = (i + rounds) % WAYS;
            taken[way][rounds] = time_way(s, way, repeat);
        }
        for (int way = 0; way < WAYS; way++)
            ratio[way][rounds] = taken[0][rounds] / taken[way][rounds];
        rounds++;
    }
    set_way(s->context, 1);
    for (long i = 0; i < repeat; i++) s->run(s->self);
    const mpt_profile_total total = mpt_get_profile_total(s->context);
    set_way(s->context, 0);
    printf("%-22s %9.1f us, %4.0f launches", name, 1e6 * measure_median(taken[0], rounds),
           (double)total.all.launches / (double)total.steps);
    for (int way = 1; way < WAYS; way++)
        printf("  %s x %.3f", ways[way], measure_median(ratio[way], rounds));
    printf("  (%d rounds)%s%s\n", rounds, mpt_failed(s->context) ? ": " : "",
           mpt_error(s->context));
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const char *const rows[][5] = {
        {"model", "mlp", "fp32", "last", "1"},    {"model", "mlp", "bf16", "last", "1"},
        {"model", "lenet5", "fp32", "last", "1"}, {"model", "resnet", "fp32", "last", "1"},
        {"model", "vit", "fp32", "last", "1"},    {"model", "gpt", "fp32", "last", "1"},
        {"model", "gpt", "bf16", "last", "1"},    {"model", "mlp-tiny", "fp32", "last", "1"}};
    const double seconds = argc > 1 ? atof(argv[1]) : 3;
    measure_print_machine();
    printf("a step without a profiler, and how fast steps are with one, in parts of that\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[5][16], *words[5], name[40];
        subject s;
        for (int k = 0; k < 5; k++) {
            snprintf(text[k], sizeof text[k], "%s", rows[i][k]);
            words[k] = text[k];
        }
        if (!serve_make(&s, makers, 5, words)) return 1;
        snprintf(name, sizeof name, "%s %s", rows[i][1], rows[i][2]);
        measure_row(&s, name, seconds);
        s.end(s.self);
    }
    return 0;
}
