/* ----
 * tools/report.c: a training as one page of HTML.
 *
 * What does not change with every step (the net, its distributions, confusions) is kept as text
 * that goes into the page as it is.
 * ---- */
#ifndef MPT__REPORT_INCLUDED
#define MPT__REPORT_INCLUDED

#include "charts.c"

enum {
    MPT__TOOLS_PANELS = 6,
    MPT__TOOLS_BARS = 24,
    MPT__TOOLS_TENSORS = 24, /* with a distribution */
    MPT__TOOLS_CLASSES = 40,
    MPT__TOOLS_DRAWN = 300000 /* bytes of a drawing that a page takes */
};

typedef struct {
    char title[80];
    mpt__tools_bytes text;
} mpt__tools_panel;

struct mpt_report {
    char *path;
    char title[120];
    mpt_report_config config;
    double written; /* when */
    mpt_status status;
    mpt__tools_series loss, lr, scale, norm, speed, memory, skips;
    mpt__tools_series epoch_loss, validation_loss, validation_accuracy;
    int64_t base, last, skipped; /* steps of fits before, the last step, skipped so far */
    mpt_progress progress;
    bool began;
    mpt__tools_bytes net, spread, confusion, kinds, step;
    mpt__tools_panel panels[MPT__TOOLS_PANELS];
    int panel_count;
};

mpt_report_config mpt_report_config_default(void) {
    mpt_report_config config = {"Training", 2.0};
    return config;
}

/* ==== The page ==== */

static const char mpt__tools_page_style[] =
    "<style>:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1d2430;--soft:#68738a;"
    "--rule:#e1e5ec;--a:#2563eb;--b:#d9480f;--c:#2b8a3e;--bad:#c92a2a}"
    "@media(prefers-color-scheme:dark){:root{--back:#0f1218;--card:#181d26;--ink:#e6eaf0;"
    "--soft:#98a3b7;--rule:#2b3341;--a:#74a9ff;--b:#ff9f6b;--c:#69d38a;--bad:#ff8787}}"
    "*{box-sizing:border-box}body{margin:0;padding:16px;background:var(--back);color:var(--ink);"
    "font:14px/1.45 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}"
    "h2{font-size:15px;margin:0 0 6px}main{display:grid;gap:14px;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}"
    "section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px;"
    "min-width:0}section svg{width:100%;height:auto;display:block}.wide{grid-column:1/-1}"
    ".scroll{overflow:auto;max-height:80vh}.scroll svg{width:auto;max-width:none}"
    "p{margin:0 0 6px;color:var(--soft)}p b{color:var(--ink)}.line{fill:none;stroke:var(--a);"
    "stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}.l1{stroke:var(--b)}"
    ".l2{stroke:var(--c)}.grid{stroke:var(--rule)}.axis{fill:var(--soft);font-size:13px}"
    ".chart{touch-action:pan-y;cursor:crosshair}.spread{touch-action:pan-y}"
    ".rule{stroke:var(--soft);pointer-events:none}.dot{fill:var(--a);stroke:var(--card);"
    "stroke-width:1.5;pointer-events:none}.d1{fill:var(--b)}.d2{fill:var(--c)}"
    ".end{text-anchor:end}.mark{stroke:var(--bad);stroke-dasharray:2 3}"
    ".bad{fill:var(--bad);text-anchor:middle;font-size:14px}.key span{margin-right:12px;"
    "display:inline-block}"
    ".key span:before{content:'\\25cf ';color:var(--a)}.key .k1:before{color:var(--b)}"
    ".key .k2:before{color:var(--c)}.key .kx:before{content:''}"
    ".key .km:before{content:'\\2506 ';color:var(--bad)}"
    ".key .kb:before{content:'\\d7 ';color:var(--bad)}table{width:100%;border-collapse:collapse}"
    "th{text-align:left;font-weight:400;padding:2px 8px 2px 0;overflow-wrap:anywhere}"
    ".bars th{min-width:84px}.bars td:nth-child(2){width:45%}.bars "
    "td:last-child{text-align:right;white-space:nowrap}"
    "i{display:block;height:10px;border-radius:3px;background:var(--a)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:10px}"
    "figure{margin:0}figcaption{font-size:11px;color:var(--soft);overflow-wrap:anywhere}"
    ".bins{fill:var(--a)}.matrix td,.matrix th{text-align:center;padding:2px 4px;font-size:12px;"
    "border:1px solid var(--rule)}img{image-rendering:pixelated;max-width:100%;width:480px}"
    "@media(max-width:520px){body{padding:8px}.axis{font-size:14px}}</style>\n";

static void mpt__tools_put_facts(mpt__tools_bytes *to, const mpt_report *r, bool over) {
    const mpt_progress *p = &r->progress;
    mpt__tools_put_format(to, "<p id=\"state\"><b>%s</b>", over ? "ended" : "running");
    if (r->began) {
        mpt__tools_put_format(to,
            " &#183; step <b>%lld</b> &#183; epoch <b>%lld</b> of %lld &#183; %.4g steps/s "
            "&#183; %.4g s &#183; %lld skipped",
            (long long)(r->base + p->step), (long long)p->epoch, (long long)p->epochs,
            p->steps_per_second, p->seconds, (long long)p->skipped_steps);
        if (p->seconds > 0)
            mpt__tools_put_format(
                to, " &#183; %.3g %% waiting for data", 100 * p->seconds_waited / p->seconds);
        if (!over && p->eta_seconds >= 0)
            mpt__tools_put_format(to, " &#183; %.4g s left", p->eta_seconds);
    }
    mpt__tools_put_format(to, "</p></header>\n<main>\n");
}

static void mpt__tools_put_charts(mpt__tools_bytes *to, const mpt_report *r) {
    const mpt__tools_chart charts[] = {
        {"loss", "Loss", {"training, mean of the epoch", "validation", "epoch"},
            {&r->loss, &r->validation_loss, &r->epoch_loss}, NULL, NULL, "step"},
        {"accuracy", "Accuracy", {"validation", NULL, NULL}, {&r->validation_accuracy, NULL, NULL},
            NULL, NULL, "step"},
        {"lr", "Learning rate", {"lr", NULL, NULL}, {&r->lr, NULL, NULL}, NULL, NULL, "step"},
        {"scale", "Loss scale", {"scale", NULL, NULL}, {&r->scale, NULL, NULL}, &r->skips,
            "skipped step", "step"},
        {"norm", "Gradient norm", {"before clipping", NULL, NULL}, {&r->norm, NULL, NULL}, NULL,
            NULL, "step"},
        {"speed", "Throughput", {"steps a second", NULL, NULL}, {&r->speed, NULL, NULL}, NULL,
            NULL, "step"},
        {"memory", "Memory", {"MiB in use behind a step", NULL, NULL}, {&r->memory, NULL, NULL},
            NULL, NULL, "step"}};
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
        mpt__tools_put_chart(to, &charts[i]);
}

static void mpt__tools_put_part(mpt__tools_bytes *to, const mpt__tools_bytes *part) {
    mpt__tools_bytes_put(to, part->data, part->size);
}

/* Writes the file. While the training runs the page says that it is to be loaded again. */
static void mpt__tools_report_write(mpt_report *r, bool over) {
    mpt__tools_bytes to = {NULL, 0, 0, false};
    mpt__tools_bytes_put_text(&to,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
        "<link rel=\"icon\" href=\"data:,\">\n");
    if (!over) mpt__tools_bytes_put_text(&to, "<meta http-equiv=\"refresh\" content=\"5\">\n");
    mpt__tools_bytes_put_text(&to, "<title>");
    mpt__tools_put_escaped(&to, r->title);
    mpt__tools_bytes_put_text(&to, "</title>\n");
    mpt__tools_bytes_put_text(&to, mpt__tools_page_style);
    mpt__tools_bytes_put_text(&to, "</head><body><header><h1>");
    mpt__tools_put_escaped(&to, r->title);
    mpt__tools_bytes_put_text(&to, "</h1>");
    mpt__tools_put_facts(&to, r, over);
    mpt__tools_put_charts(&to, r);
    mpt__tools_put_part(&to, &r->step);
    mpt__tools_put_part(&to, &r->kinds);
    for (int i = 0; i < r->panel_count; i++) mpt__tools_put_part(&to, &r->panels[i].text);
    mpt__tools_put_part(&to, &r->confusion);
    mpt__tools_put_part(&to, &r->spread);
    mpt__tools_put_part(&to, &r->net);
    mpt__tools_bytes_put_text(&to, "</main>\n");
    mpt__tools_bytes_put_text(&to, mpt__tools_page_script);
    mpt__tools_bytes_put_text(&to, "</body></html>\n");
    r->status = mpt__tools_file_replace(r->path, &to);
    r->written = mpt__tools_seconds();
    mpt__tools_bytes_free(&to);
}

/* ==== Beginning and ending ==== */

mpt_report *mpt_report_open(const char *path, const mpt_report_config *config) {
    mpt_report *r = path ? (mpt_report *)mpt__tools_allocate(sizeof *r) : NULL;
    if (!r) return NULL;
    r->config = config ? *config : mpt_report_config_default();
    r->path = (char *)mpt__tools_allocate(strlen(path) + 1);
    if (!r->path) {
        mpt__tools_release(r);
        return NULL;
    }
    memcpy(r->path, path, strlen(path) + 1);
    mpt__tools_note title = mpt__tools_note_begin(r->title, sizeof r->title);
    mpt__tools_note_add(&title, "%s", r->config.title ? r->config.title : "Training");
    mpt__tools_report_write(r, false);
    return r;
}

mpt_status mpt_report_close(mpt_report *r) {
    if (!r) return MPT_OK;
    mpt__tools_report_write(r, true);
    const mpt_status status = r->status;
    mpt__tools_bytes_free(&r->net);
    mpt__tools_bytes_free(&r->spread);
    mpt__tools_bytes_free(&r->confusion);
    mpt__tools_bytes_free(&r->kinds);
    mpt__tools_bytes_free(&r->step);
    for (int i = 0; i < r->panel_count; i++) mpt__tools_bytes_free(&r->panels[i].text);
    mpt__tools_release(r->path);
    mpt__tools_release(r);
    return status;
}

/* ==== What it is told ==== */

static bool mpt__tools_is_nan(double value) {
    return mpt__tools_bits_of(value) << 1 > 0x7FFull << 53;
}

bool mpt_report_fit(void *user, const mpt_progress *p) {
    mpt_report *r = (mpt_report *)user;
    if (!r || !p) return true;
    if (r->began && p->step < r->last) r->base += r->last, r->skipped = 0; /* another fit */
    const double step = (double)(r->base + p->step);
    r->began = true;
    r->last = p->step;
    r->progress = *p;
    if (p->epoch_end) {
        mpt__tools_series_add(&r->epoch_loss, step, p->loss);
        if (!mpt__tools_is_nan(p->validation_accuracy) || !mpt__tools_is_nan(p->validation_loss)) {
            mpt__tools_series_add(&r->validation_loss, step, p->validation_loss);
            mpt__tools_series_add(&r->validation_accuracy, step, p->validation_accuracy);
        }
    } else {
        mpt__tools_series_add(&r->loss, step, p->loss);
        if (!mpt__tools_is_nan(p->lr)) mpt__tools_series_add(&r->lr, step, p->lr);
        if (!mpt__tools_is_nan(p->grad_norm)) mpt__tools_series_add(&r->norm, step, p->grad_norm);
        mpt__tools_series_add(&r->scale, step, p->scale);
        mpt__tools_series_add(&r->speed, step, p->steps_per_second);
        mpt__tools_series_add(&r->memory, step, (double)p->memory / 1048576);
        if (p->skipped_steps > r->skipped) mpt__tools_series_add(&r->skips, step, 1);
        r->skipped = p->skipped_steps;
    }
    if (mpt__tools_seconds() - r->written >= r->config.seconds) mpt__tools_report_write(r, false);
    return true;
}

mpt_status mpt_report_bars(mpt_report *r, const char *title, const char *const *names,
    const double *values, int count, const char *unit) {
    if (!r) return MPT_ERROR_HANDLE;
    if (!title || !names || !values || count < 1) return MPT_ERROR_ARGUMENT;
    char cut[80];
    int at = 0;
    double most = 0;
    mpt__tools_note note = mpt__tools_note_begin(cut, sizeof cut);
    mpt__tools_note_add(&note, "%s", title);
    while (at < r->panel_count && strcmp(r->panels[at].title, cut) != 0) at++;
    if (at == MPT__TOOLS_PANELS) return MPT_ERROR_ARGUMENT;
    if (at == r->panel_count) r->panel_count++;
    mpt__tools_panel *panel = &r->panels[at];
    memcpy(panel->title, cut, sizeof cut);
    if (count > MPT__TOOLS_BARS) count = MPT__TOOLS_BARS;
    for (int i = 0; i < count; i++)
        if (mpt__tools_is_finite(values[i]) && values[i] > most) most = values[i];
    mpt__tools_bytes *to = &panel->text;
    to->size = 0;
    mpt__tools_put_format(to, "<section class=\"panel\"><h2>");
    mpt__tools_put_escaped(to, cut);
    mpt__tools_put_format(to, "</h2><table class=\"bars\">\n");
    for (int i = 0; i < count; i++)
        mpt__tools_put_bar(to, names[i] ? names[i] : "", values[i], most, unit ? unit : "");
    mpt__tools_put_format(to, "</table></section>\n");
    return to->failed ? MPT_ERROR_MEMORY : MPT_OK;
}

/* ==== Memory over a step ==== */

enum { MPT__TOOLS_STEP_POINTS = 400 };

/* A step of a profile with its launches, of which so many neighbours make a point that there are
   points enough: a point has the most that was in use in them. */
typedef struct {
    double start, end; /* seconds; where there is none, `end` is not behind `start` */
    int64_t launches;
} mpt__tools_stretch;
typedef struct {
    mpt__tools_stretch whole, last; /* the one that is drawn; the last one, which may be cut off */
    int64_t each, in_point;
    double most;                       /* of the point under way, MiB */
    int phase;                         /* of the launch before */
    mpt__tools_series line[MPT__TOOLS_LINES]; /* forward, backward, update: MiB by microseconds */
} mpt__tools_step;

static bool mpt__tools_stretch_has(const mpt__tools_stretch *step, const mpt_profile_span *span) {
    return span->kind == MPT_SPAN_LAUNCH && span->start >= step->start && span->start < step->end;
}

static void mpt__tools_step_find(void *user, const mpt_profile_span *span) {
    mpt__tools_step *step = (mpt__tools_step *)user;
    if (span->kind == MPT_SPAN_STEP) {
        if (step->last.launches > 0) step->whole = step->last;
        step->last.start = span->start, step->last.end = span->start + span->seconds;
        step->last.launches = 0;
    } else if (mpt__tools_stretch_has(&step->last, span)) {
        step->last.launches++;
    }
}

static void mpt__tools_step_follow(void *user, const mpt_profile_span *span) {
    mpt__tools_step *step = (mpt__tools_step *)user;
    if (!mpt__tools_stretch_has(&step->whole, span)) return;
    const int phase = *span->phase == 'f' ? 0
        : *span->phase == 'b'             ? 1
        : *span->phase == 'u'             ? 2
                                          : step->phase;
    const double used = (double)span->memory / 1048576;
    if (used > step->most) step->most = used;
    if (++step->in_point < step->each && phase == step->phase) return;
    mpt__tools_series *line = &step->line[phase];
    const mpt__tools_series *before = &step->line[step->phase];
    if (phase != step->phase && before->count > 0) /* the lines meet */
        mpt__tools_series_add(
            line, before->step[before->count - 1], before->value[before->count - 1]);
    const double microseconds = 1e6 * (span->start + span->seconds - step->whole.start);
    mpt__tools_series_add(line, floor(microseconds + 0.5), step->most);
    step->in_point = 0, step->most = 0, step->phase = phase;
}

static void mpt__tools_put_step(mpt_report *r, mpt_context *ctx) {
    mpt__tools_step *step = (mpt__tools_step *)mpt__tools_allocate(sizeof *step);
    if (!step) return;
    mpt_profile_spans(ctx, mpt__tools_step_find, step);
    if (step->whole.launches == 0) step->whole = step->last;
    step->each = step->whole.launches / MPT__TOOLS_STEP_POINTS + 1;
    mpt_profile_spans(ctx, mpt__tools_step_follow, step);
    const mpt__tools_chart chart = {"step", "Memory over a step", {"forward", "backward", "update"},
        {&step->line[0], &step->line[1], &step->line[2]}, NULL, NULL, "us"};
    r->step.size = 0;
    mpt__tools_put_chart(&r->step, &chart);
    mpt__tools_release(step);
}

mpt_status mpt_report_profile(mpt_report *r, mpt_context *ctx) {
    if (!r) return MPT_ERROR_HANDLE;
    mpt_profile_row rows[MPT__TOOLS_BARS];
    char text[MPT__TOOLS_BARS][64];
    const char *names[MPT__TOOLS_BARS];
    double values[MPT__TOOLS_BARS];
    const int64_t found = mpt_profile_rows(ctx, MPT_PROFILE_OP, rows, MPT__TOOLS_BARS);
    const int count = found < (int64_t)MPT__TOOLS_BARS ? (int)found : (int)MPT__TOOLS_BARS;
    if (found < 0) return mpt_error_code(ctx);
    const int64_t steps = mpt_get_profile_total(ctx).steps;
    mpt__tools_put_step(r, ctx);
    for (int i = 0; i < count; i++) {
        mpt__tools_note name = mpt__tools_note_begin(text[i], sizeof text[i]);
        mpt__tools_note_add(&name, "%s %s", rows[i].name, rows[i].phase);
        names[i] = text[i];
        values[i] = 1e6 * rows[i].seconds / (double)(steps > 0 ? steps : 1);
    }
    return mpt_report_bars(r, "Time of a step, by op", names, values, count, "us");
}

mpt_status mpt_report_confusion(mpt_report *r, const int64_t *counts, int classes) {
    if (!r) return MPT_ERROR_HANDLE;
    if (!counts || classes < 2 || classes > MPT__TOOLS_CLASSES) return MPT_ERROR_ARGUMENT;
    mpt__tools_bytes *to = &r->confusion;
    to->size = 0;
    mpt__tools_put_format(to,
        "<section id=\"confusion\"><h2>Confusion</h2><p>rows: true class; columns: guess</p>"
        "<div class=\"scroll\"><table class=\"matrix\"><tr><th></th>");
    for (int i = 0; i < classes; i++) mpt__tools_put_format(to, "<th>%lld</th>", (long long)i);
    mpt__tools_put_format(to, "</tr>\n");
    for (int i = 0; i < classes; i++) {
        double all = 0;
        for (int k = 0; k < classes; k++) all += (double)counts[(int64_t)i * classes + k];
        mpt__tools_put_format(to, "<tr><th>%lld</th>", (long long)i);
        for (int k = 0; k < classes; k++) {
            const int64_t count = counts[(int64_t)i * classes + k];
            const double share = all > 0 ? (double)count / all : 0;
            mpt__tools_put_format(to, "<td title=\"%lld taken for %lld: %.3g %%\" "
                                      "style=\"background:rgba(%s,%.2f)\">%lld</td>",
                (long long)i, (long long)k, 100 * share,
                i == k ? "43,138,62" : "201,42,42",
                i == k             ? 0.6 * share
                    : share > 0.25 ? 0.8
                                   : 3.2 * share,
                (long long)count);
        }
        mpt__tools_put_format(to, "</tr>\n");
    }
    mpt__tools_put_format(to, "</table></div></section>\n");
    return to->failed ? MPT_ERROR_MEMORY : MPT_OK;
}

/* ==== The net ==== */

/* The distribution of a tensor's finite numbers; nothing where it has none. */
static void mpt__tools_put_spread(mpt__tools_bytes *to, const char *name, mpt_tensor tensor) {
    int64_t counts[MPT__TOOLS_COLUMNS];
    const mpt_tensor_stats stats = mpt_statistics(tensor);
    if (mpt_failed(tensor.context) || !mpt__tools_is_finite(stats.min)) return;
    const double pad = stats.max > stats.min ? 0 : stats.min < 0 ? -stats.min : stats.min + 1e-6;
    const double low = stats.min - pad, high = stats.max + pad;
    if (mpt_histogram(tensor, low, high, counts, MPT__TOOLS_COLUMNS) == MPT_OK)
        mpt__tools_put_histogram(to, name, counts, stats.min, stats.max);
}

static void mpt__tools_put_spreads(mpt__tools_bytes *to, mpt_module net, bool gradients) {
    const int count = mpt_parameter_count(net);
    int drawn = 0;
    char path[1024];
    for (int i = 0; i < count && drawn < MPT__TOOLS_TENSORS; i++) {
        const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
        if (gradients && !mpt_has_grad(tensor)) continue;
        if (drawn++ == 0)
            mpt__tools_put_format(to,
                "<section id=\"%s\" class=\"wide\"><h2>%s</h2><div class=\"tiles\">\n",
                gradients ? "gradients" : "weights", gradients ? "Gradients" : "Weights");
        mpt__tools_put_spread(to, path, gradients ? mpt_grad(tensor) : tensor);
    }
    if (drawn > 0) mpt__tools_put_format(to, "</div></section>\n");
}

/* How the rows of a weight are pictures: their side, planes and how many; false where not. */
static bool mpt__tools_filters_are(const mpt_shape *shape, int64_t *height, int64_t *width) {
    if (shape->rank == 4 && shape->dim[2] > 1 && shape->dim[2] <= 64 && shape->dim[3] <= 64) {
        *height = shape->dim[2], *width = shape->dim[3];
        return true;
    }
    if (shape->rank != 2 || shape->dim[1] < 64 || shape->dim[1] > 4096) return false;
    for (*height = 8; *height * *height < shape->dim[1];) ++*height;
    *width = *height;
    return *height * *width == shape->dim[1];
}

/* Up to 32 filters, eight in a row, each from its least number to its largest. */
static void mpt__tools_put_filters(
    mpt__tools_bytes *to, const char *path, const float *values, const mpt_shape *shape) {
    int64_t height, width;
    if (!mpt__tools_filters_are(shape, &height, &width)) return;
    const int64_t each = mpt__tools_shape_numel(shape) / shape->dim[0];
    const int64_t count = shape->dim[0] < 32 ? shape->dim[0] : 32, across = count < 8 ? count : 8;
    const int64_t wide = across * (width + 1) - 1;
    const int64_t high = (count + across - 1) / across * (height + 1) - 1;
    unsigned char *pixels = (unsigned char *)mpt__tools_allocate((size_t)(wide * high));
    mpt__tools_bytes png = {NULL, 0, 0, false};
    for (int64_t f = 0; pixels && f < count; f++) {
        const float *filter = values + f * each; /* its first plane */
        float low = filter[0], top = filter[0];
        for (int64_t i = 0; i < height * width; i++)
            low = filter[i] < low ? filter[i] : low, top = filter[i] > top ? filter[i] : top;
        for (int64_t i = 0; i < height * width; i++)
            pixels[(f / across * (height + 1) + i / width) * wide + f % across * (width + 1) +
                i % width] =
                mpt__tools_pixel_of(top > low ? (filter[i] - low) / (top - low) : 0.5f);
    }
    if (pixels) mpt__tools_put_png(&png, pixels, (int)wide, (int)high, 1);
    mpt__tools_put_format(to, "<section id=\"filters\"><h2>First filters</h2><p>");
    mpt__tools_put_cut(to, path, 60);
    mpt__tools_put_format(to, "</p><img alt=\"filters\" src=\"data:image/png;base64,");
    mpt__tools_put_base64(to, &png);
    mpt__tools_put_format(to, "\"></section>\n");
    mpt__tools_bytes_free(&png);
    mpt__tools_release(pixels);
}

static void mpt__tools_put_first_filters(mpt__tools_bytes *to, mpt_module net) {
    const int count = mpt_parameter_count(net);
    char path[1024];
    for (int i = 0; i < count; i++) {
        const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
        const mpt_shape shape = mpt_get_shape(tensor);
        int64_t height, width;
        if (!mpt__tools_filters_are(&shape, &height, &width)) continue;
        const int64_t numel = mpt__tools_shape_numel(&shape);
        float *values = (float *)mpt__tools_allocate((size_t)numel * sizeof *values);
        if (values && mpt_read_f32(tensor, values, numel) == MPT_OK)
            mpt__tools_put_filters(to, path, values, &shape);
        mpt__tools_release(values);
        return;
    }
}

static void mpt__tools_put_kinds(mpt__tools_bytes *to, mpt_context *ctx) {
    const mpt_memory_stats memory = mpt_memory(ctx);
    double most = 0;
    for (int i = 0; i < MPT_MEMORY_KINDS; i++)
        most = (double)memory.peak[i] > most ? (double)memory.peak[i] : most;
    mpt__tools_put_format(to,
        "<section id=\"kinds\"><h2>Memory by kind</h2><p>the most so far</p>"
        "<table class=\"bars\">\n");
    for (int i = 0; i < MPT_MEMORY_KINDS; i++)
        if (memory.peak[i] > 0)
            mpt__tools_put_bar(to, mpt_memory_kind_name((mpt_memory_kind)i),
                (double)memory.peak[i] / 1048576, most / 1048576, "MiB");
    mpt__tools_put_format(to, "</table></section>\n");
}

mpt_status mpt_report_net(mpt_report *r, mpt_module net, mpt_graph graph) {
    if (!r) return MPT_ERROR_HANDLE;
    if (mpt_parameter_count(net) < 0) return MPT_ERROR_HANDLE;
    r->spread.size = r->kinds.size = 0;
    mpt__tools_put_first_filters(&r->spread, net);
    mpt__tools_put_spreads(&r->spread, net, false);
    mpt__tools_put_spreads(&r->spread, net, true);
    mpt__tools_put_kinds(&r->kinds, net.context);
    if (graph.slot) {
        mpt__tools_bytes svg = {NULL, 0, 0, false};
        const bool fine = mpt__tools_put_svg(&svg, graph);
        r->net.size = 0;
        mpt__tools_put_format(
            &r->net, "<section id=\"net\" class=\"wide\"><h2>Net</h2><div class=\"scroll\">\n");
        if (fine && svg.size <= MPT__TOOLS_DRAWN)
            mpt__tools_put_part(&r->net, &svg);
        else
            mpt__tools_put_format(&r->net, "<p>too large to be drawn here; see mpt_graph_svg</p>");
        mpt__tools_put_format(&r->net, "</div></section>\n");
        mpt__tools_bytes_free(&svg);
    }
    if (mpt_failed(net.context)) return mpt_error_code(net.context);
    return r->spread.failed || r->net.failed || r->kinds.failed ? MPT_ERROR_MEMORY : MPT_OK;
}

#endif
