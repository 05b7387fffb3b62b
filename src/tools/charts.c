/* ----
 * tools/charts.c: pictures of numbers, as SVG in a page.
 * ---- */
#ifndef MPT__CHARTS_INCLUDED
#define MPT__CHARTS_INCLUDED

#include "drawing.c"

/* ==== Series ==== */

/* Numbers by step. Where there are too many, two neighbours become one. */
enum { MPT__TOOLS_POINTS = 512 };
typedef struct {
    int count;
    int64_t each, open; /* numbers in a point, and in the one under way */
    double sum;
    double step[MPT__TOOLS_POINTS], value[MPT__TOOLS_POINTS];
} mpt__tools_series;

static void mpt__tools_series_add(mpt__tools_series *s, double step, double value) {
    if (s->each == 0) s->each = 1;
    s->sum += value; /* what is not finite makes its point so */
    if (++s->open < s->each) return;
    if (s->count == MPT__TOOLS_POINTS) {
        for (int i = 0; i < s->count / 2; i++) {
            s->step[i] = s->step[2 * i + 1];
            s->value[i] = (s->value[2 * i] + s->value[2 * i + 1]) / 2;
        }
        s->count /= 2;
        s->each *= 2;
        return; /* this one opens a point of twice as many */
    }
    s->step[s->count] = step;
    s->value[s->count++] = s->sum / (double)s->open;
    s->sum = 0, s->open = 0;
}

/* ==== Lines ==== */

enum { MPT__TOOLS_LINES = 3 };
typedef struct {
    const char *id, *title;
    const char *name[MPT__TOOLS_LINES];
    const mpt__tools_series *series[MPT__TOOLS_LINES];
    const mpt__tools_series *marks; /* NULL; steps of marks */
    const char *mark;               /* what they are */
    const char *axis;               /* what goes to the right */
} mpt__tools_chart;

typedef struct {
    double left, right, low, high;
    int finite, strange; /* points */
} mpt__tools_range;

static mpt__tools_range mpt__tools_chart_range(const mpt__tools_chart *chart) {
    mpt__tools_range r = {0, 1, 0, 1, 0, 0};
    bool any = false;
    for (int k = 0; k < MPT__TOOLS_LINES; k++) {
        const mpt__tools_series *s = chart->series[k];
        for (int i = 0; s && i < s->count; i++) {
            if (!any || s->step[i] < r.left) r.left = s->step[i];
            if (!any || s->step[i] > r.right) r.right = s->step[i];
            any = true;
            if (!mpt__tools_is_finite(s->value[i])) {
                r.strange++;
                continue;
            }
            if (r.finite == 0 || s->value[i] < r.low) r.low = s->value[i];
            if (r.finite == 0 || s->value[i] > r.high) r.high = s->value[i];
            r.finite++;
        }
    }
    /* What only rounding makes differ is drawn as what is equal. */
    const double largest = fabs(r.low) > fabs(r.high) ? fabs(r.low) : fabs(r.high);
    if (r.high / 2 - r.low / 2 <= 1e-6 * largest) r.low = r.high;
    return r;
}

/* Where a number is in the picture, from `a` to `b`; in the middle where all are equal. */
static double mpt__tools_place(double value, double low, double high, double a, double b) {
    const double wide = high / 2 - low / 2; /* which cannot overflow */
    return wide > 0 ? a + (b - a) * ((value / 2 - low / 2) / wide) : (a + b) / 2;
}

enum { MPT__TOOLS_X0 = 88, MPT__TOOLS_X1 = 448, MPT__TOOLS_Y0 = 168, MPT__TOOLS_Y1 = 12 };

/* What a pointer finds: the numbers of a line, where x is none that is finite. */
static void mpt__tools_put_points(mpt__tools_bytes *to, const mpt__tools_series *s) {
    mpt__tools_put_format(to, " data-x=\"");
    for (int i = 0; i < s->count; i++) mpt__tools_put_format(to, i ? " %.7g" : "%.7g", s->step[i]);
    mpt__tools_put_format(to, "\" data-y=\"");
    for (int i = 0; i < s->count; i++)
        mpt__tools_put_format(
            to, !mpt__tools_is_finite(s->value[i]) ? " x" : i ? " %.5g" : "%.5g", s->value[i]);
    mpt__tools_put_format(to, "\"");
}

static void mpt__tools_put_line(
    mpt__tools_bytes *to, const mpt__tools_series *s, const mpt__tools_range *r, int number) {
    bool drawn = false;
    mpt__tools_put_format(to, "<path class=\"line l%lld\"", (long long)number);
    mpt__tools_put_points(to, s);
    mpt__tools_put_format(to, " d=\"");
    for (int i = 0; i < s->count; i++) {
        if (!mpt__tools_is_finite(s->value[i])) {
            drawn = false;
            continue;
        }
        const double x =
            mpt__tools_place(s->step[i], r->left, r->right, MPT__TOOLS_X0, MPT__TOOLS_X1);
        mpt__tools_put_format(to, "%s%.1f %.1f", drawn ? "L" : "M", x,
            mpt__tools_place(s->value[i], r->low, r->high, MPT__TOOLS_Y0, MPT__TOOLS_Y1));
        drawn = true;
        const bool alone = (i == 0 || !mpt__tools_is_finite(s->value[i - 1])) &&
            (i + 1 == s->count || !mpt__tools_is_finite(s->value[i + 1]));
        if (alone) mpt__tools_put_format(to, "h.1"); /* round ends make it a dot */
    }
    mpt__tools_put_format(to, "\"/>\n");
    for (int i = 0; i < s->count; i++)
        if (!mpt__tools_is_finite(s->value[i]))
            mpt__tools_put_format(to, "<text class=\"bad\" x=\"%.1f\" y=\"%lld\">&#215;</text>\n",
                mpt__tools_place(s->step[i], r->left, r->right, MPT__TOOLS_X0, MPT__TOOLS_X1),
                (long long)MPT__TOOLS_Y1 + 4);
}

static void mpt__tools_put_axes(
    mpt__tools_bytes *to, const mpt__tools_range *r, const char *axis) {
    for (int i = 0; i < 3; i++) {
        const double value = i == 1 ? r->low / 2 + r->high / 2 : i ? r->high : r->low;
        const double low = (double)MPT__TOOLS_Y0, high = (double)MPT__TOOLS_Y1;
        const double y = low + i * (high - low) / 2;
        const bool told = i == 1 || r->high > r->low; /* the middle one where all are equal */
        mpt__tools_put_format(to, "<path class=\"grid\" d=\"M%lld %.1fH%lld\"/>",
            (long long)MPT__TOOLS_X0, y, (long long)MPT__TOOLS_X1);
        if (told && r->finite > 0)
            mpt__tools_put_format(
                to, "<text class=\"axis end\" x=\"82\" y=\"%.1f\">%.4g</text>\n", y + 4, value);
    }
    mpt__tools_put_format(to,
        "<text class=\"axis\" x=\"%lld\" y=\"186\">%s %.7g</text><text class=\"axis end\" "
        "x=\"%lld\" y=\"186\">%.7g</text>\n",
        (long long)MPT__TOOLS_X0, axis, r->left, (long long)MPT__TOOLS_X1, r->right);
}

static void mpt__tools_put_chart(mpt__tools_bytes *to, const mpt__tools_chart *chart) {
    const mpt__tools_range r = mpt__tools_chart_range(chart);
    if (r.finite + r.strange == 0) return;
    mpt__tools_put_format(
        to, "<section id=\"%s\"><h2>%s</h2><p class=\"key\">", chart->id, chart->title);
    for (int k = 0; k < MPT__TOOLS_LINES; k++) {
        const mpt__tools_series *s = chart->series[k];
        if (s && s->count > 0)
            mpt__tools_put_format(to, "<span class=\"k%lld\">%s <b>%.5g</b></span> ", (long long)k,
                chart->name[k], s->value[s->count - 1]);
    }
    if (chart->marks && chart->marks->count > 0)
        mpt__tools_put_format(to, "<span class=\"km\">%s</span> ", chart->mark);
    if (r.strange > 0) mpt__tools_put_format(to, "<span class=\"kb\">not finite</span>");
    mpt__tools_put_format(to,
        "<span class=\"kx\">%s <b>%.7g</b></span></p><svg class=\"chart\" viewBox=\"0 0 460 192\" "
        "role=\"img\" data-range=\"%.17g %.17g %.17g %.17g\">\n",
        chart->axis, r.right, r.left, r.right, r.low, r.high);
    mpt__tools_put_axes(to, &r, chart->axis);
    for (int i = 0; chart->marks && i < chart->marks->count; i++)
        mpt__tools_put_format(to, "<path class=\"mark\" d=\"M%.1f %lldV%lld\"/>\n",
            mpt__tools_place(chart->marks->step[i], r.left, r.right, MPT__TOOLS_X0, MPT__TOOLS_X1),
            (long long)MPT__TOOLS_Y0, (long long)MPT__TOOLS_Y1);
    for (int k = 0; k < MPT__TOOLS_LINES; k++)
        if (chart->series[k] && chart->series[k]->count > 0)
            mpt__tools_put_line(to, chart->series[k], &r, k);
    mpt__tools_put_format(to, "</svg></section>\n");
}

/* ==== Bars ==== */

static void mpt__tools_put_bar(
    mpt__tools_bytes *to, const char *name, double value, double most, const char *unit) {
    const bool good = mpt__tools_is_finite(value) && value > 0 && most > 0;
    mpt__tools_put_format(to, "<tr><th>");
    mpt__tools_put_cut(to, name, 40);
    mpt__tools_put_format(to, "</th><td><i style=\"width:%.1f%%\"></i></td><td>%.4g ",
        good ? 100 * (value / most) : 0.0, value);
    mpt__tools_put_escaped(to, unit);
    mpt__tools_put_format(to, "</td></tr>\n");
}

/* A distribution, as columns. */
enum { MPT__TOOLS_COLUMNS = 40 };
static void mpt__tools_put_histogram(
    mpt__tools_bytes *to, const char *name, const int64_t *counts, double low, double high) {
    int64_t most = 1;
    for (int i = 0; i < MPT__TOOLS_COLUMNS; i++) most = counts[i] > most ? counts[i] : most;
    mpt__tools_put_format(to,
        "<figure><svg class=\"spread\" viewBox=\"0 0 160 50\" data-range=\"%.9g %.9g\" "
        "data-n=\"",
        low, high);
    for (int i = 0; i < MPT__TOOLS_COLUMNS; i++)
        mpt__tools_put_format(to, i ? " %lld" : "%lld", (long long)counts[i]);
    mpt__tools_put_format(to, "\"><path class=\"bins\" d=\"M0 50");
    for (int i = 0; i < MPT__TOOLS_COLUMNS; i++)
        mpt__tools_put_format(to, "V%.1fh4", 50 - 48 * (double)counts[i] / (double)most);
    mpt__tools_put_format(to, "V50z\"/></svg><figcaption><b>");
    mpt__tools_put_cut(to, name, 30);
    mpt__tools_put_format(
        to, "</b> <span>%.3g .. %.3g</span></figcaption></figure>\n", low, high);
}

/* What a line or a distribution is under the pointer. A line tells it of its point that is nearest
   to where the pointer is, if that is within the line or close to it, and marks it. */
static const char mpt__tools_page_script[] =
    "<script>\n"
    "for (const s of document.querySelectorAll('svg.chart')) {\n"
    " const card = s.parentNode, make = (kind, name) => {\n"
    "  const e = document.createElementNS(s.namespaceURI, kind);\n"
    "  e.setAttribute('class', name); return s.appendChild(e); };\n"
    " const set = (e, to) => { for (const k in to) e.setAttribute(k, to[k]); };\n"
    " const [left, right, low, high] = s.dataset.range.split(' ').map(Number);\n"
    " const at = x => right > left ? 88 + 360 * (x - left) / (right - left) : 268;\n"
    " const rule = make('path', 'rule'), axis = card.querySelector('.kx b');\n"
    " const lines = [...s.querySelectorAll('.line')].map(p => { const k = p.classList[1][1];\n"
    "  return {x: p.dataset.x.split(' ').map(Number), y: p.dataset.y.trim().split(' '),\n"
    "   tell: card.querySelector('.k' + k + ' b'), dot: make('circle', 'dot d' + k)}; });\n"
    " const was = [axis, ...lines.map(l => l.tell)].map(e => [e, e.textContent]);\n"
    " const near = (l, x) => { let a = 0, b = l.x.length - 1; while (b - a > 1) {\n"
    "  const m = a + b >> 1; if (l.x[m] > x) b = m; else a = m; }\n"
    "  return Math.abs(l.x[a] - x) > Math.abs(l.x[b] - x) ? b : a; };\n"
    " const show = e => { const m = s.getScreenCTM(), u = (e.clientX - m.e) / m.a;\n"
    "  const x = left + (u - 88) / 360 * (right - left); let best = NaN;\n"
    "  for (const l of lines) { const c = l.x[near(l, x)];\n"
    "   if (!(Math.abs(c - x) >= Math.abs(best - x))) best = c; }\n"
    "  axis.textContent = best;\n"
    "  set(rule, {d: 'M' + at(best) + ' 12V168', visibility: 'visible'});\n"
    "  for (const l of lines) { const i = near(l, best), y = Number(l.y[i]);\n"
    "   const here = best >= l.x[0] && l.x[l.x.length - 1] >= best ||\n"
    "    12 > Math.abs(at(l.x[i]) - at(best));\n"
    "   l.tell.textContent = !here ? '\\u2013' : l.y[i] == 'x' ? 'not finite' : l.y[i];\n"
    "   if (here && !isNaN(y)) set(l.dot, {r: 4, visibility: 'visible', cx: at(l.x[i]),\n"
    "    cy: high > low ? 168 - 156 * ((y / 2 - low / 2) / (high / 2 - low / 2)) : 90});\n"
    "   else set(l.dot, {visibility: 'hidden'}); } };\n"
    " s.onpointermove = s.onpointerdown = show;\n"
    " s.onpointerleave = e => { if (e.pointerType == 'touch') return;\n"
    "  for (const [b, text] of was) b.textContent = text;\n"
    "  for (const x of [rule, ...lines.map(l => l.dot)]) set(x, {visibility: 'hidden'}); };\n"
    "}\n"
    "for (const s of document.querySelectorAll('svg.spread')) {\n"
    " const tell = s.parentNode.querySelector('span'), was = tell.textContent;\n"
    " const [low, high] = s.dataset.range.split(' ').map(Number), n = s.dataset.n.split(' ');\n"
    " const short = x => String(Number(x.toPrecision(3)));\n"
    " s.onpointermove = s.onpointerdown = e => { const m = s.getScreenCTM();\n"
    "  const i = Math.max(0, Math.min(n.length - 1, Math.floor((e.clientX - m.e) / m.a / 4)));\n"
    "  const from = low + (high - low) * i / n.length;\n"
    "  tell.textContent = n[i] + ' in ' + short(from) + ' .. ' +\n"
    "   short(from + (high - low) / n.length); };\n"
    " s.onpointerleave = e => { if (e.pointerType != 'touch') tell.textContent = was; };\n"
    "}\n</script>\n";

/* ==== Pictures ==== */

static void mpt__tools_put_base64(mpt__tools_bytes *to, const mpt__tools_bytes *from) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < from->size; i += 3) {
        char four[4] = {'=', '=', '=', '='};
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < from->size ? from->data[i + k] : 0u);
        for (size_t k = 0; k < 4 && i + k <= from->size; k++)
            four[k] = digits[bits >> (18 - 6 * k) & 63];
        mpt__tools_bytes_put(to, four, 4);
    }
}

#endif
