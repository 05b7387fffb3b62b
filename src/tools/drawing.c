/* ----
 * tools/drawing.c: a traced net as a picture.
 *
 * A node's row is the longest way to it from an input, so that edges go down; its column is that of
 * the first node that it reads, or the next free one. Of several that read the same, that one goes
 * straight on from which the way to the end is longest. An edge that passes rows by goes around, in
 * a lane of its own at the right of what it passes. Frames are drawn around what a module computes.
 * ---- */
#ifndef MPT__DRAWING_INCLUDED
#define MPT__DRAWING_INCLUDED

#include "graph_event.c"

enum {
    MPT__TOOLS_BOX_WIDTH = 220,
    MPT__TOOLS_BOX_HEIGHT = 50,
    MPT__TOOLS_COLUMN = 260, /* from one to the next */
    MPT__TOOLS_ROW = 94,
    MPT__TOOLS_LANE = 16,
    MPT__TOOLS_EDGE_OF_PICTURE = 40
};

typedef struct {
    const mpt_node *node;
    int row, column; /* row -1: without a box */
    int readers;     /* boxes that read it */
    int height;      /* the longest way to a box that none reads */
    int heir;        /* which box of the next row is below it, as it was read first; 0: none */
    int next;        /* the box that is next to the right in its row, plus one; 0: none */
} mpt__tools_box;

/* An edge that passes rows by. */
typedef struct {
    int from, to, lane, column; /* column: the last one that it passes */
} mpt__tools_detour;

typedef struct {
    mpt_graph graph;
    int count, rows, columns, lanes, detours;
    mpt__tools_box *boxes; /* by node */
    mpt__tools_detour *detour;
} mpt__tools_drawing;

/* ==== Places ==== */

/* The box that an input comes from; -1: none. */
static int mpt__tools_box_before(const mpt__tools_drawing *d, int i, int input) {
    const int from = d->boxes[i].node->input[input].node;
    return from >= 0 && d->boxes[from].row >= 0 ? from : -1;
}

static void mpt__tools_drawing_rows(mpt__tools_drawing *d) {
    for (int i = 0; i < d->count; i++) {
        mpt__tools_box *box = &d->boxes[i];
        box->node = mpt_graph_node(d->graph, i);
        box->row = mpt__tools_node_shown(box->node) ? 0 : -1;
        for (int k = 0; k < box->node->inputs && box->row >= 0; k++) {
            const int from = mpt__tools_box_before(d, i, k);
            if (from < 0) continue;
            d->boxes[from].readers++;
            if (d->boxes[from].row + 1 > box->row) box->row = d->boxes[from].row + 1;
        }
        if (box->row + 1 > d->rows) d->rows = box->row + 1;
    }
    for (int i = d->count; i-- > 0;) { /* constants beside what reads them, not at the top */
        mpt__tools_box *box = &d->boxes[i];
        if (box->node->kind != MPT_NODE_CONSTANT) continue;
        for (int k = i + 1; k < d->count; k++)
            for (int n = 0; n < d->boxes[k].node->inputs; n++)
                if (d->boxes[k].node->input[n].node == i && d->boxes[k].row > 0) {
                    box->row = d->boxes[k].row - 1;
                    k = d->count - 1;
                    break;
                }
    }
}

/* Which of the boxes that read one first is below it. Box 0, which reads none, is nobody's. */
static void mpt__tools_drawing_heirs(mpt__tools_drawing *d) {
    for (int i = d->count; i-- > 0;)
        for (int k = 0; k < d->boxes[i].node->inputs && d->boxes[i].row >= 0; k++) {
            const int from = mpt__tools_box_before(d, i, k);
            if (from >= 0 && d->boxes[from].height <= d->boxes[i].height)
                d->boxes[from].height = d->boxes[i].height + 1;
        }
    for (int i = 0; i < d->count; i++) {
        const mpt__tools_box *box = &d->boxes[i];
        const int from =
            box->row > 0 && box->node->inputs > 0 ? mpt__tools_box_before(d, i, 0) : -1;
        if (from < 0 || box->row != d->boxes[from].row + 1) continue;
        const int heir = d->boxes[from].heir;
        if (heir == 0 || d->boxes[heir].height < box->height) d->boxes[from].heir = i;
    }
}

/* `first` has a place for each row: its leftmost box, plus one. */
static void mpt__tools_drawing_columns(mpt__tools_drawing *d, int *first) {
    for (int i = 0; i < d->count; i++) {
        mpt__tools_box *box = &d->boxes[i];
        if (box->row < 0) continue;
        const int from = box->node->inputs > 0 ? mpt__tools_box_before(d, i, 0) : -1;
        if (from >= 0) {
            const int heir = d->boxes[from].heir;
            box->column = d->boxes[from].column +
                (heir && heir != i && d->boxes[heir].row == box->row);
        }
        int *link = &first[box->row];
        for (; *link && d->boxes[*link - 1].column <= box->column; link = &d->boxes[*link - 1].next)
            if (d->boxes[*link - 1].column == box->column) box->column++;
        box->next = *link;
        *link = i + 1;
        if (box->column + 1 > d->columns) d->columns = box->column + 1;
    }
}

/* The last column that has a box in these rows. */
static int mpt__tools_drawing_reach(const mpt__tools_drawing *d, int top, int bottom) {
    int reach = 0;
    for (int i = 0; i < d->count; i++)
        if (d->boxes[i].row >= top && d->boxes[i].row <= bottom && d->boxes[i].column > reach)
            reach = d->boxes[i].column;
    return reach;
}

/* Gives detours lanes, in which none meets another. */
static void mpt__tools_drawing_lanes(mpt__tools_drawing *d) {
    for (int i = 0; i < d->count; i++)
        for (int k = 0; k < d->boxes[i].node->inputs && d->boxes[i].row >= 0; k++) {
            const int from = mpt__tools_box_before(d, i, k);
            if (from < 0 || d->boxes[i].row - d->boxes[from].row < 2) continue;
            mpt__tools_detour detour = {from, i, 0,
                mpt__tools_drawing_reach(d, d->boxes[from].row, d->boxes[i].row)};
            for (int n = 0; n < d->detours; n++) {
                const mpt__tools_detour *other = &d->detour[n];
                if (other->lane != detour.lane || other->from == from ||
                    d->boxes[other->to].row < d->boxes[from].row ||
                    d->boxes[other->from].row > d->boxes[i].row)
                    continue;
                detour.lane++;
                n = -1; /* all of them once more */
            }
            if (detour.lane + 1 > d->lanes) d->lanes = detour.lane + 1;
            d->detour[d->detours++] = detour;
        }
}

static bool mpt__tools_drawing_make(mpt__tools_drawing *d, mpt_graph graph) {
    memset(d, 0, sizeof *d);
    d->graph = graph;
    d->count = mpt_graph_count(graph);
    if (d->count < 1) return false;
    d->boxes = (mpt__tools_box *)mpt__tools_allocate((size_t)d->count * sizeof *d->boxes);
    if (!d->boxes) return false;
    size_t inputs = 0;
    mpt__tools_drawing_rows(d);
    for (int i = 0; i < d->count; i++) inputs += (size_t)d->boxes[i].node->inputs;
    int *first = (int *)mpt__tools_allocate((size_t)d->rows * sizeof *first);
    d->detour = (mpt__tools_detour *)mpt__tools_allocate(inputs * sizeof *d->detour);
    mpt__tools_drawing_heirs(d);
    if (first) mpt__tools_drawing_columns(d, first);
    if (d->detour) mpt__tools_drawing_lanes(d);
    const bool fine = first && d->detour;
    mpt__tools_release(first);
    return fine;
}

static void mpt__tools_drawing_free(mpt__tools_drawing *d) {
    mpt__tools_release(d->boxes);
    mpt__tools_release(d->detour);
}

static int mpt__tools_box_x(const mpt__tools_box *box) {
    return MPT__TOOLS_EDGE_OF_PICTURE + box->column * MPT__TOOLS_COLUMN;
}
static int mpt__tools_box_y(const mpt__tools_box *box) {
    return MPT__TOOLS_EDGE_OF_PICTURE + box->row * MPT__TOOLS_ROW;
}

/* ==== Parts ==== */

/* At most `most` characters, of which the last three are dots where there were more. */
static void mpt__tools_put_cut(mpt__tools_bytes *to, const char *text, size_t most) {
    char cut[80];
    size_t length = strlen(text), n = length > most ? most - 3 : length;
    while (n > 0 && length > most && ((unsigned char)text[n] & 0xC0) == 0x80) n--; /* UTF-8 */
    memcpy(cut, text, n);
    memcpy(cut + n, length > most ? "..." : "", length > most ? 4 : 1);
    mpt__tools_put_escaped(to, cut);
}

static void mpt__tools_svg_text(
    mpt__tools_bytes *to, int x, int y, const char *style, const char *text, size_t most) {
    if (!text[0]) return;
    mpt__tools_put_format(
        to, "<text x=\"%lld\" y=\"%lld\" class=\"%s\">", (long long)x, (long long)y, style);
    mpt__tools_put_cut(to, text, most);
    mpt__tools_put_format(to, "</text>\n");
}

static void mpt__tools_svg_box(mpt__tools_bytes *to, const mpt__tools_drawing *d, int i) {
    const mpt__tools_box *box = &d->boxes[i];
    const mpt_node *node = box->node;
    const bool op = node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP;
    const int x = mpt__tools_box_x(box), y = mpt__tools_box_y(box), middle = x + 110;
    char result[640], more[100], name[1024];
    mpt__tools_node_result(node, result, sizeof result);
    mpt__tools_node_more(d->graph, node, more, sizeof more);
    mpt__tools_note title = mpt__tools_note_begin(name, sizeof name);
    mpt__tools_note_add(
        &title, node->module[0] ? "%s  %s" : "%s%s", node->name, op ? node->module : "");
    mpt__tools_put_format(to, "<g><title>");
    mpt__tools_put_escaped(to, name);
    mpt__tools_put_format(to,
        ": %s</title><rect x=\"%lld\" y=\"%lld\" width=\"220\" height=\"50\" rx=\"%lld\" "
        "class=\"%s\"/>\n",
        result, (long long)x, (long long)y, op ? 6ll : 25ll,
        node->kind == MPT_NODE_CONSTANT                            ? "mg-constant"
            : op && mpt__tools_node_parameters(d->graph, node) > 0 ? "mg-layer"
            : op                                                   ? "mg-op"
                                                                   : "mg-end");
    mpt__tools_svg_text(to, middle, y + (more[0] ? 15 : 21),
        title.length > 27 ? "mg-name mg-long" : "mg-name", name, 32);
    mpt__tools_svg_text(to, middle, y + (more[0] ? 30 : 38), "mg-text", result, 38);
    mpt__tools_svg_text(to, middle, y + 44, "mg-text", more, 40);
    mpt__tools_put_format(to, "</g>\n");
}

static void mpt__tools_svg_edge(
    mpt__tools_bytes *to, const mpt__tools_drawing *d, int from, int i) {
    const mpt__tools_box *a = &d->boxes[from], *b = &d->boxes[i];
    const long long x = mpt__tools_box_x(a) + 110, y = mpt__tools_box_y(a) + 50;
    const long long u = mpt__tools_box_x(b) + 110, v = mpt__tools_box_y(b);
    mpt__tools_put_format(to,
        "<path class=\"mg-edge\" marker-end=\"url(#mg-tip)\" d=\"M%lld %lldC%lld %lld %lld %lld "
        "%lld %lld\"/>\n",
        x, y, x, y + 22, u, v - 22, u, v - 2);
}

/* Out below the box, along its lane, and in above the other. */
static void mpt__tools_svg_detour(
    mpt__tools_bytes *to, const mpt__tools_drawing *d, const mpt__tools_detour *detour) {
    const mpt__tools_box *a = &d->boxes[detour->from], *b = &d->boxes[detour->to];
    const long long x = mpt__tools_box_x(a) + 150, y = mpt__tools_box_y(a) + 50;
    const long long u = mpt__tools_box_x(b) + 150, v = mpt__tools_box_y(b);
    const long long lane = MPT__TOOLS_EDGE_OF_PICTURE + detour->column * MPT__TOOLS_COLUMN +
        MPT__TOOLS_BOX_WIDTH + 24 + detour->lane * MPT__TOOLS_LANE;
    char shape[200];
    mpt__tools_put_format(to,
        "<path class=\"mg-edge\" marker-end=\"url(#mg-tip)\" d=\"M%lld %lldv9q0 8 8 8H%lldq8 0 8 "
        "8V%lldq0 8 -8 8H%lldq-8 0 -8 8v16\"/>\n",
        x, y, lane - 8, v - 34, u + 8);
    mpt__tools_note note = mpt__tools_note_begin(shape, sizeof shape);
    mpt__tools_note_shape(&note, &a->node->shape[0]);
    mpt__tools_put_format(
        to, "<text x=\"%lld\" y=\"%lld\" class=\"mg-along\">%s</text>\n", x + 8, y + 11, shape);
}

/* A frame around the boxes of a module, if it has two or more and this is the first one. */
static void mpt__tools_svg_frame(
    mpt__tools_bytes *to, const mpt__tools_drawing *d, int first, size_t length, int depth) {
    char path[1024];
    int left = d->columns, right = 0, top = d->rows, bottom = 0, boxes = 0;
    if (length >= sizeof path) return;
    memcpy(path, d->boxes[first].node->module, length);
    path[length] = '\0';
    for (int i = 0; i < d->count; i++) {
        const mpt__tools_box *box = &d->boxes[i];
        if (box->row < 0 || !mpt__tools_path_within(box->node->module, path)) continue;
        if (i < first) return; /* it is drawn */
        left = box->column < left ? box->column : left;
        right = box->column > right ? box->column : right;
        top = box->row < top ? box->row : top;
        bottom = box->row > bottom ? box->row : bottom;
        boxes++;
    }
    if (boxes < 2) return;
    const int out = depth < 5 ? 18 - 3 * depth : 3;
    const long long x = MPT__TOOLS_EDGE_OF_PICTURE + left * MPT__TOOLS_COLUMN - out;
    const long long y = MPT__TOOLS_EDGE_OF_PICTURE + top * MPT__TOOLS_ROW - out;
    mpt__tools_put_format(to,
        "<rect class=\"mg-frame\" x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%lld\" "
        "rx=\"8\"/>\n",
        x, y, (long long)(right - left) * MPT__TOOLS_COLUMN + MPT__TOOLS_BOX_WIDTH + 2 * out,
        (long long)(bottom - top) * MPT__TOOLS_ROW + MPT__TOOLS_BOX_HEIGHT + 2 * out);
    /* Beside the names of frames around it, and the tips of edges. */
    const int beside = 4 + 60 * depth + (depth > 1 ? 52 : 0);
    mpt__tools_svg_text(to, (int)x + beside, (int)y - 3, "mg-module", path, 36);
}

static void mpt__tools_svg_frames(mpt__tools_bytes *to, const mpt__tools_drawing *d) {
    for (int i = 0; i < d->count; i++) {
        const char *path = d->boxes[i].node->module;
        if (d->boxes[i].row < 0 || !path[0]) continue;
        size_t length = 0;
        for (int depth = 0; depth < 200; depth++) {
            length += strcspn(path + length, ".");
            mpt__tools_svg_frame(to, d, i, length, depth);
            if (!path[length++]) break;
        }
    }
}

/* ==== The whole ==== */

static const char mpt__tools_svg_style[] =
    "<style>.mg{background:#fff;font-family:system-ui,sans-serif}.mg rect{stroke:#8a94a6;"
    "stroke-width:1}.mg-op{fill:#f4f6fa}.mg-layer{fill:#dbe9ff}.mg-end{fill:#dff3e4}"
    ".mg-constant{fill:#fdf0d5}.mg .mg-frame{fill:none;stroke:#b9c0cc;stroke-dasharray:4 3}"
    ".mg-edge{fill:none;stroke:#5b6676;stroke-width:1.3}#mg-tip path{fill:#5b6676}"
    ".mg text{text-anchor:middle;fill:#1d2430;font-size:11px}.mg .mg-name{font-size:13px;"
    "font-weight:600}.mg .mg-long{font-size:11px}.mg .mg-module,.mg .mg-along{"
    "text-anchor:start;fill:#6b7686;font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "@media(prefers-color-scheme:dark){.mg{background:#14181f}.mg-op{fill:#232a35}"
    ".mg-layer{fill:#1f3a63}.mg-end{fill:#1f4530}.mg-constant{fill:#4a3b1a}"
    ".mg rect{stroke:#5f6b7d}.mg .mg-frame{stroke:#465062}.mg-edge{stroke:#97a3b6}"
    "#mg-tip path{fill:#97a3b6}.mg text{fill:#e6eaf0}.mg .mg-module,.mg .mg-along{fill:#97a3b6;"
    "stroke:#14181f}}"
    "</style>\n<defs><marker id=\"mg-tip\" viewBox=\"0 0 8 8\" refX=\"6\" refY=\"4\" "
    "markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker>"
    "</defs>\n";

/* The svg element; false on error, without memory or of a graph that is none. */
static bool mpt__tools_put_svg(mpt__tools_bytes *to, mpt_graph graph) {
    mpt__tools_drawing d;
    const bool fine = mpt__tools_drawing_make(&d, graph);
    const long long width = 2 * MPT__TOOLS_EDGE_OF_PICTURE + (d.columns - 1) * MPT__TOOLS_COLUMN +
        MPT__TOOLS_BOX_WIDTH + d.lanes * MPT__TOOLS_LANE;
    const long long height =
        2 * MPT__TOOLS_EDGE_OF_PICTURE + (d.rows - 1) * MPT__TOOLS_ROW + MPT__TOOLS_BOX_HEIGHT;
    if (fine) {
        mpt__tools_put_format(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mg\" width=\"%lld\" "
            "height=\"%lld\" viewBox=\"0 0 %lld %lld\">\n",
            width, height, width, height);
        mpt__tools_bytes_put_text(to, mpt__tools_svg_style);
        for (int i = 0; i < d.count; i++)
            for (int k = 0; k < d.boxes[i].node->inputs && d.boxes[i].row >= 0; k++) {
                const int from = mpt__tools_box_before(&d, i, k);
                if (from >= 0 && d.boxes[i].row - d.boxes[from].row == 1)
                    mpt__tools_svg_edge(to, &d, from, i);
            }
        for (int i = 0; i < d.detours; i++) mpt__tools_svg_detour(to, &d, &d.detour[i]);
        mpt__tools_svg_frames(to, &d); /* whose names are above the edges */
        for (int i = 0; i < d.count; i++)
            if (d.boxes[i].row >= 0) mpt__tools_svg_box(to, &d, i);
        mpt__tools_bytes_put_text(to, "</svg>\n");
    }
    mpt__tools_drawing_free(&d);
    return fine;
}

mpt_status mpt_graph_svg(mpt_graph graph, const char *path) {
    mpt__tools_bytes to = {NULL, 0, 0, false};
    if (mpt_graph_count(graph) < 0) return MPT_ERROR_HANDLE;
    if (!path) return MPT_ERROR_ARGUMENT;
    const bool fine = mpt__tools_put_svg(&to, graph);
    const mpt_status status = fine ? mpt__tools_file_replace(path, &to) : MPT_ERROR_MEMORY;
    mpt__tools_bytes_free(&to);
    return status;
}

#endif
