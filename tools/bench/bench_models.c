/* bench_models.c: training steps of the nets of examples/resnet.h, vit.h and gpt.h, and of LeNet-5,
   on the CPU.
   Precisions take turns; each is compared with fp32 of the same repetition.
       bench_models [seconds per sample, 0.5]
       bench_models --profile MODEL PRECISION LAYOUT THREADS    where the time of a step goes
       bench_models --serve    subjects for a driver:
           model MODEL PRECISION LAYOUT THREADS
       MODEL: resnet, vit, gpt or lenet5. PRECISION: fp32, bf16 or fp16. LAYOUT: of pictures, last
       or contiguous. */
#include "models.h"

enum { PROFILE_LINES = 40 };

static bool make_words(subject *s, const char *kind, const char *p, const char *layout,
                       const char *threads) {
    char text[5][32], *argv[5];
    const char *const words[] = {"model", kind, p, layout, threads};
    for (int i = 0; i < 5; i++) {
        snprintf(text[i], sizeof text[i], "%s", words[i]);
        argv[i] = text[i];
    }
    return serve_make(s, makers, 5, argv);
}

/* Sums over launches with the same text, the largest first. */
static void profile_print(profile *p) {
    double total = 0.0;
    int kept = 0;
    for (int i = 0; i < p->count; i++) total += p->seconds[i];
    printf("%d launches, %.3f ms\n", p->count, 1e3 * total);
    for (; kept < PROFILE_LINES; kept++) {
        double most = 0.0;
        int which = -1, times = 0;
        for (int i = 0; i < p->count; i++) {
            double sum = 0.0;
            for (int j = i; j < p->count; j++)
                if (p->name[i] && p->name[j] && strcmp(p->name[i], p->name[j]) == 0)
                    sum += p->seconds[j];
            if (sum > most) most = sum, which = i;
        }
        if (which < 0) break;
        char *name = p->name[which];
        for (int j = p->count - 1; j >= which; j--) {
            if (!p->name[j] || strcmp(p->name[j], name) != 0) continue;
            times++;
            if (j > which) free(p->name[j]);
            p->name[j] = NULL;
        }
        printf("%5.1f %% %9.1f us %4d times  %s\n", 100.0 * most / total, 1e6 * most, times, name);
        free(name);
    }
    profile_free(p);
}

static int profile_model(char **argv) {
    static profile p;
    subject s;
    if (!make_words(&s, argv[0], argv[1], argv[2], argv[3])) return 1;
    s.run(s.self);
    profile_steps(&p, s.context, s.run, s.self);
    printf("%s %s %s %sT: ", argv[0], argv[1], argv[2], argv[3]);
    profile_print(&p);
    s.end(s.self);
    return 0;
}

/* ==== The table ==== */

static int table(double seconds) {
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    measure_print_machine();
    printf("ms per step (times own fp32); 1T: CPU time, 2T: wall clock; medians\n");
    for (int i = 0; i < 2 * CPU_KINDS; i++) {
        const model_kind *k = &kinds[i / 2];
        const char *threads = i % 2 ? "2" : "1";
        subject subjects[4], *turns[4];
        repetitions r;
        char note[80];
        const int n = k->text ? 3 : 4;
        for (int p = 0; p < n; p++) {
            const char *layout = p < 3 ? "last" : "contiguous";
            turns[p] = &subjects[p];
            if (!make_words(turns[p], k->name, names[p % 3], layout, threads)) return 1;
        }
        measure_alternating(turns, n, seconds, atoi(threads), &r);
        measure_note(&r, note, sizeof note);
        printf("%-7s %sT", k->name, threads);
        for (int p = 0; p < n; p++)
            printf("  %s%s %.2f (%.2f)", names[p % 3], p < 3 ? "" : " contiguous",
                   1e3 * r.median[p], measure_ratio(&r, 0, p));
        printf("  %s\n", note);
        fflush(stdout);
        for (int p = 0; p < n; p++) subjects[p].end(subjects[p].self);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    if (argc == 6 && strcmp(argv[1], "--profile") == 0) return profile_model(argv + 2);
    return table(argc > 1 ? atof(argv[1]) : 0.5);
}
