/* report.h - what a training run came to: as a table that compares runs, and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "mptrain.h"

typedef struct run_report {
    const char *precision, *optimizer;
    char data[300];
    int64_t epochs, batch, parameters;
    double train_loss, test_accuracy, seconds, steps_per_second, loss_scale;
    double epoch_seconds; /* of the fastest epoch, which a busy machine disturbs least */
    int64_t skipped_steps;
    int64_t bytes[MPT_MEMORY_KINDS]; /* peak of each kind */
    int64_t total_bytes;             /* peak of all kinds but the resident dataset */
    double bytes_per_parameter;      /* value, copies, gradient, moments: what lasts */
} run_report;

/* What runs where, before it does. A CPU that multiplies bf16 gains in fp16 only by tiles. */
static inline void report_start(const run_report *report, mpt_context *ctx, mpt_dtype dtype) {
    const mpt_device_info device = mpt_get_device_info(ctx);
    const bool slow = !device.fast_half ||
                      (dtype == MPT_F16 && mpt_get_isa(ctx) != MPT_ISA_AMX &&
                       device.device == MPT_DEVICE_CPU);
    printf("Data: %s; %s on %s%s\n", report->data, report->precision, device.name,
           dtype != MPT_F32 && slow ? ", where 16 bits save memory, not time" : "");
}

/* Takes the numbers. Call it when the training loop is done, before anything else uses memory. */
static inline void report_memory(run_report *report, mpt_context *ctx) {
    mpt_memory_stats memory = mpt_memory(ctx);
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++) report->bytes[kind] = memory.peak[kind];
    report->total_bytes = memory.total_peak - memory.current[MPT_MEMORY_DATA];
    int64_t stays = memory.current[MPT_MEMORY_PARAMETER] + memory.current[MPT_MEMORY_MASTER] +
                    memory.current[MPT_MEMORY_FORM] + memory.current[MPT_MEMORY_GRADIENT] +
                    memory.current[MPT_MEMORY_MOMENT];
    report->bytes_per_parameter = (double)stays / (double)report->parameters;
}

/* ==== Table ==== */

static const struct {
    mpt_memory_kind kind;
    const char *label;
} report_kinds[] = {{MPT_MEMORY_PARAMETER, "parameters"}, {MPT_MEMORY_MASTER, "fp32 masters"},
                    {MPT_MEMORY_FORM, "half forms"},      {MPT_MEMORY_GRADIENT, "gradients"},
                    {MPT_MEMORY_MOMENT, "moments"},       {MPT_MEMORY_ACTIVATION, "activations"},
                    {MPT_MEMORY_BATCH, "batches"},        {MPT_MEMORY_WORKSPACE, "workspace"},
                    {MPT_MEMORY_HOST, "tables, records"}};
enum { REPORT_KINDS = sizeof report_kinds / sizeof report_kinds[0] };

/* One number per run: a row of the table. */
static inline double report_value(const run_report *run, int row) {
    switch (row) {
    case 0:
        return (double)run->total_bytes / 1024.0;
    case 1:
        return run->bytes_per_parameter;
    case 2:
        return run->epoch_seconds;
    case 3:
        return run->steps_per_second * run->seconds / (double)run->epochs / run->epoch_seconds;
    case 4:
        return (double)run->skipped_steps;
    case 5:
        return run->loss_scale;
    case 6:
        return run->train_loss;
    default:
        return 100.0 * run->test_accuracy;
    }
}

static const struct {
    const char *label;
    int decimals;
} report_rows[] = {{"total", 1},
                   {"bytes per parameter", 1},
                   {"best epoch, seconds", 2},
                   {"its steps per second", 0},
                   {"skipped steps", 0},
                   {"final loss scale", 0},
                   {"training loss", 4},
                   {"test accuracy, %", 2}};
enum { REPORT_ROWS = sizeof report_rows / sizeof report_rows[0] };

static inline void report_kind_row(const run_report *runs, int count, const char *label, int kind) {
    printf("  %-22s", label);
    for (int i = 0; i < count; i++) printf("%11.1f", (double)runs[i].bytes[kind] / 1024.0);
    printf("\n");
}

/* What a mixed run costs and saves beside the fp32 run; within 3 % is no difference. */
static inline void report_verdict(const run_report *fp32, const run_report *mixed) {
    double memory = (double)mixed->total_bytes / (double)fp32->total_bytes;
    double time = mixed->epoch_seconds / fp32->epoch_seconds;
    bool saves = memory < 0.97 || time < 0.97;
    bool costs = memory > 1.03 || time > 1.03;
    const char *verdict = !saves && !costs ? "no difference"
                          : !saves         ? "costs more than it saves"
                          : memory > 1.03  ? "saves time, costs memory"
                          : time > 1.03    ? "saves memory, costs time"
                          : time >= 0.97   ? "saves memory"
                          : memory >= 0.97 ? "saves time"
                                           : "saves memory and time";
    printf("  %s against fp32: memory x %.2f, time x %.2f: %s\n", mixed->precision, memory, time,
           verdict);
}

/* runs[0] is the fp32 run that the others are measured against. */
static inline void report_table(const run_report *runs, int count) {
    printf("\nbatch %lld, %lld epochs, %s\n  %-22s", (long long)runs[0].batch,
           (long long)runs[0].epochs, runs[0].optimizer, "peak memory, KiB");
    for (int i = 0; i < count; i++) printf("%11s", runs[i].precision);
    printf("\n");
    for (int k = 0; k < REPORT_KINDS; k++)
        report_kind_row(runs, count, report_kinds[k].label, (int)report_kinds[k].kind);
    for (int row = 0; row < REPORT_ROWS; row++) {
        printf("  %-22s", report_rows[row].label);
        for (int i = 0; i < count; i++)
            printf("%11.*f", report_rows[row].decimals, report_value(&runs[i], row));
        printf("\n");
        if (row == 0) report_kind_row(runs, count, "(resident dataset)", MPT_MEMORY_DATA);
    }
    bool dearer = false;
    for (int i = 1; i < count; i++) {
        report_verdict(&runs[0], &runs[i]);
        dearer = dearer || runs[i].total_bytes > runs[0].total_bytes;
    }
    if (dearer)
        printf(
            "  At this size mixed precision needs more memory, not less: the extra copies of the\n"
            "  weights outweigh what half activations save. Larger batches turn this around.\n");
}

/* ==== JSON ==== */

static inline void json_number(FILE *file, const char *name, double value) {
    if (value - value == 0.0)
        fprintf(file, "\"%s\": %.9g, ", name, value);
    else
        fprintf(file, "\"%s\": null, ", name); /* JSON has no NaN */
}

static inline void json_text(FILE *file, const char *name, const char *text) {
    fprintf(file, "\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text < 32)
            fprintf(file, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, file);
    }
    fprintf(file, "\", ");
}

/* The last entry of an object: peaks by kind, and of all together. */
static inline void json_peaks(FILE *file, const int64_t *bytes, int64_t total) {
    fprintf(file, "\"peak_bytes\": {");
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++)
        fprintf(file, "\"%s\": %lld, ", mpt_memory_kind_name((mpt_memory_kind)kind),
                (long long)bytes[kind]);
    fprintf(file, "\"total\": %lld}", (long long)total);
}

static inline void json_run(FILE *file, const run_report *run) {
    fprintf(file, "{");
    json_text(file, "precision", run->precision);
    json_text(file, "optimizer", run->optimizer);
    json_text(file, "data", run->data);
    fprintf(file, "\"epochs\": %lld, \"batch\": %lld, \"parameters\": %lld, ",
            (long long)run->epochs, (long long)run->batch, (long long)run->parameters);
    json_number(file, "train_loss", run->train_loss);
    json_number(file, "test_accuracy", run->test_accuracy);
    json_number(file, "seconds", run->seconds);
    json_number(file, "fastest_epoch_seconds", run->epoch_seconds);
    json_number(file, "steps_per_second", run->steps_per_second);
    fprintf(file, "\"skipped_steps\": %lld, ", (long long)run->skipped_steps);
    json_number(file, "loss_scale", run->loss_scale);
    json_peaks(file, run->bytes, run->total_bytes);
    fprintf(file, "}");
}

/* One object: the run itself, or {"runs": [...]} for several. False if it cannot be written. */
static inline bool json_write(FILE *file, const run_report *runs, int count) {
    if (count > 1) fprintf(file, "{\"runs\": [\n");
    for (int i = 0; i < count; i++) {
        json_run(file, &runs[i]);
        fprintf(file, i + 1 < count ? ",\n" : "\n");
    }
    if (count > 1) fprintf(file, "]}\n");
    return fflush(file) == 0 && !ferror(file);
}

#endif
