/* ----
 * tools/graph.c: a traced net as a table and for Graphviz.
 * ---- */
#ifndef MPT__GRAPH_INCLUDED
#define MPT__GRAPH_INCLUDED

#include "text.c"

/* ==== Text into bytes ==== */

/* As mpt__tools_note_add; one call makes at most 1,000 characters. */
MPT__TOOLS_FORMAT(2)
static void mpt__tools_put_format(mpt__tools_bytes *to, const char *format, ...) {
    char text[1001];
    mpt__tools_note note = mpt__tools_note_begin(text, sizeof text);
    va_list arguments;
    va_start(arguments, format);
    mpt__tools_note_list(&note, format, &arguments);
    va_end(arguments);
    mpt__tools_bytes_put_text(to, text);
}

/* A text as XML and HTML have it. What cannot stand there is left out. */
static void mpt__tools_put_escaped(mpt__tools_bytes *to, const char *text) {
    for (; *text; text++) {
        const char *word = *text == '&' ? "&amp;"
            : *text == '<'              ? "&lt;"
            : *text == '>'              ? "&gt;"
            : *text == '"'              ? "&quot;"
            : *text == '\''             ? "&#39;"
                                        : NULL;
        if (word)
            mpt__tools_bytes_put_text(to, word);
        else if ((unsigned char)*text >= 32)
            mpt__tools_bytes_put(to, text, 1);
    }
}

/* ==== Words ==== */

static int64_t mpt__tools_shape_numel(const mpt_shape *shape) {
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) count *= shape->dim[i];
    return count;
}

static void mpt__tools_note_shape(mpt__tools_note *note, const mpt_shape *shape) {
    mpt__tools_note_char(note, '[');
    for (int i = 0; i < shape->rank; i++)
        mpt__tools_note_add(note, "%s%lld", i ? ", " : "", (long long)shape->dim[i]);
    mpt__tools_note_char(note, ']');
}

/* 1234567 as 1,234,567. */
static void mpt__tools_note_count(mpt__tools_note *note, int64_t count) {
    char text[32];
    mpt__tools_note digits = mpt__tools_note_begin(text, sizeof text);
    mpt__tools_note_add(&digits, "%lld", (long long)count);
    for (size_t i = 0; i < digits.length; i++) {
        if (i > 0 && (digits.length - i) % 3 == 0) mpt__tools_note_char(note, ',');
        mpt__tools_note_char(note, text[i]);
    }
}

/* Whether a node has a box: what modules hold is told in the boxes that read it. */
static bool mpt__tools_node_shown(const mpt_node *node) {
    return node->kind != MPT_NODE_PARAMETER && node->kind != MPT_NODE_BUFFER;
}

/* Elements of the parameters that a node reads. */
static int64_t mpt__tools_node_parameters(mpt_graph graph, const mpt_node *node) {
    int64_t count = 0;
    for (int i = 0; i < node->inputs; i++) {
        const mpt_node *from =
            node->input[i].node < 0 ? NULL : mpt_graph_node(graph, node->input[i].node);
        if (from && from->kind == MPT_NODE_PARAMETER)
            count += mpt__tools_shape_numel(&from->shape[0]);
    }
    return count;
}

/* "[32, 128] float32". */
static void mpt__tools_node_result(const mpt_node *node, char *text, size_t size) {
    mpt__tools_note note = mpt__tools_note_begin(text, size);
    for (int i = 0; i < node->outputs; i++) {
        if (i > 0) mpt__tools_note_add(&note, ", ");
        mpt__tools_note_shape(&note, &node->shape[i]);
        mpt__tools_note_add(&note, " %s", mpt_dtype_name(node->dtype[i]));
    }
}

/* "1,290 parameters", and in what a product computes where that is not its result's dtype. */
static void mpt__tools_node_more(mpt_graph graph, const mpt_node *node, char *text, size_t size) {
    mpt__tools_note note = mpt__tools_note_begin(text, size);
    const int64_t parameters = mpt__tools_node_parameters(graph, node);
    if (parameters > 0) {
        mpt__tools_note_count(&note, parameters);
        mpt__tools_note_add(&note, " parameters");
    }
    if (node->compute != MPT_DTYPE_NONE && node->compute != MPT_F32)
        mpt__tools_note_add(
            &note, "%sin %s", note.length ? ", " : "", mpt_dtype_name(node->compute));
}

/* Whether `path` is `above` or below it; "" is above all. */
static bool mpt__tools_path_within(const char *path, const char *above) {
    const size_t length = strlen(above);
    if (length == 0) return true;
    return strncmp(path, above, length) == 0 && (path[length] == '\0' || path[length] == '.');
}

/* ==== The table ==== */

typedef struct {
    int64_t trainable, frozen;
    double bytes, flop;
} mpt__tools_totals;

static mpt__tools_totals mpt__tools_graph_totals(mpt_graph graph, mpt_module net) {
    mpt__tools_totals totals = {0, 0, 0, 0};
    char path[1024];
    const int parameters = mpt_parameter_count(net), nodes = mpt_graph_count(graph);
    for (int i = 0; i < parameters; i++) {
        const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
        const mpt_shape shape = mpt_get_shape(tensor);
        const int64_t count = mpt__tools_shape_numel(&shape);
        *(mpt_get_requires_grad(tensor) ? &totals.trainable : &totals.frozen) += count;
        totals.bytes += (double)count * (double)mpt_dtype_size(mpt_get_dtype(tensor));
    }
    for (int i = 0; i < nodes; i++) totals.flop += mpt_graph_node(graph, i)->flop;
    return totals;
}

/* What a module gave last; "not called" where no op is in it. */
static void mpt__tools_module_result(mpt_graph graph, const char *path, char *text, size_t size) {
    mpt__tools_note note = mpt__tools_note_begin(text, size);
    for (int i = mpt_graph_count(graph); i-- > 0;) {
        const mpt_node *node = mpt_graph_node(graph, i);
        const bool op = node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP;
        if (!op || !mpt__tools_path_within(node->module, path)) continue;
        mpt__tools_note_shape(&note, &node->shape[0]);
        return;
    }
    mpt__tools_note_add(&note, "-");
}

static void mpt__tools_summary_line(
    mpt__tools_note *note, mpt_graph graph, mpt_module module, const char *path) {
    char name[200], result[200], count[40];
    mpt__tools_note line = mpt__tools_note_begin(name, sizeof name);
    const char *own = path;
    int depth = path[0] != '\0';
    for (const char *c = path; *c; c++)
        if (*c == '.') depth++, own = c + 1;
    for (int i = 0; i < depth && i < 20; i++) mpt__tools_note_add(&line, "  ");
    mpt__tools_note_add(&line, *own ? "%s (%s)" : "%s%s", own, mpt_module_kind(module));
    mpt__tools_module_result(graph, path, result, sizeof result);
    mpt__tools_note number = mpt__tools_note_begin(count, sizeof count);
    mpt__tools_note_count(&number, mpt_parameter_numel(module));
    mpt__tools_note_add(note, "%-40s  %-22s %14s\n", name, result, count);
}

size_t mpt_graph_summary(mpt_graph graph, mpt_module net, char *text, size_t capacity) {
    mpt__tools_note note = mpt__tools_note_begin(text, capacity);
    const int modules = mpt_graph_count(graph) < 0 ? -1 : mpt_module_count(net);
    if (modules < 0) return 0;
    mpt__tools_note_add(&note, "%-40s  %-22s %14s\n", "module (kind)", "output", "parameters");
    for (int i = 0; i < modules; i++) {
        char path[1024];
        const mpt_module module = mpt_module_at(net, i, path, sizeof path);
        mpt__tools_summary_line(&note, graph, module, path);
    }
    const mpt__tools_totals totals = mpt__tools_graph_totals(graph, net);
    mpt__tools_note_add(&note, "parameters: ");
    mpt__tools_note_count(&note, totals.trainable + totals.frozen);
    mpt__tools_note_add(&note, ", trainable ");
    mpt__tools_note_count(&note, totals.trainable);
    mpt__tools_note_add(&note, ", frozen ");
    mpt__tools_note_count(&note, totals.frozen);
    mpt__tools_note_add(&note, "; ");
    mpt__tools_note_count(&note, (int64_t)totals.bytes);
    mpt__tools_note_add(&note, " bytes\nforward pass: %.4g FLOP\n", totals.flop);
    return note.length;
}

/* ==== Graphviz ==== */

/* Within the quotes of a label or name. */
static void mpt__tools_put_quoted(mpt__tools_bytes *to, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') mpt__tools_bytes_put(to, "\\", 1);
        if ((unsigned char)*text >= 32) mpt__tools_bytes_put(to, text, 1);
    }
}

static void mpt__tools_dot_node(mpt__tools_bytes *to, mpt_graph graph, int index) {
    const mpt_node *node = mpt_graph_node(graph, index);
    char result[640], more[100];
    if (!mpt__tools_node_shown(node)) return;
    mpt__tools_node_result(node, result, sizeof result);
    mpt__tools_node_more(graph, node, more, sizeof more);
    mpt__tools_put_format(to, "n%lld [label=\"", (long long)index);
    mpt__tools_put_quoted(to, node->name);
    mpt__tools_put_format(to, "\\n%s", result);
    mpt__tools_put_format(to, "%s%s\"%s];\n", more[0] ? "\\n" : "", more,
        node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP ? "" : ", style=rounded");
}

/* The nodes of a module, and in a frame each those of the modules below it. */
static void mpt__tools_dot_group(
    mpt__tools_bytes *to, mpt_graph graph, const char *above, int depth) {
    const int count = mpt_graph_count(graph);
    for (int i = 0; i < count; i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        char group[1024];
        if (strcmp(node->module, above) == 0) mpt__tools_dot_node(to, graph, i);
        if (!mpt__tools_node_shown(node) || !mpt__tools_path_within(node->module, above) ||
            strcmp(node->module, above) == 0)
            continue;
        const size_t length = strlen(above) + (above[0] != '\0');
        const size_t whole = length + strcspn(node->module + length, ".");
        if (whole >= sizeof group || depth > 200) continue;
        memcpy(group, node->module, whole);
        group[whole] = '\0';
        int first = 0;
        while (!mpt__tools_node_shown(mpt_graph_node(graph, first)) ||
            !mpt__tools_path_within(mpt_graph_node(graph, first)->module, group))
            first++;
        if (first < i) continue; /* its frame is drawn */
        mpt__tools_put_format(
            to, "subgraph cluster_%lld_%lld { label=\"", (long long)depth, (long long)i);
        mpt__tools_put_quoted(to, group + length);
        mpt__tools_put_format(to, "\";\n");
        mpt__tools_dot_group(to, graph, group, depth + 1);
        mpt__tools_put_format(to, "}\n");
    }
}

mpt_status mpt_graph_dot(mpt_graph graph, const char *path) {
    mpt__tools_bytes to = {NULL, 0, 0, false};
    const int count = mpt_graph_count(graph);
    if (count < 0) return MPT_ERROR_HANDLE;
    if (!path) return MPT_ERROR_ARGUMENT;
    mpt__tools_bytes_put_text(&to,
        "digraph net {\nnode [shape=box, fontname=\"sans-serif\", fontsize=11];\n"
        "edge [fontname=\"sans-serif\", fontsize=9];\n"
        "graph [fontname=\"sans-serif\", fontsize=10, labeljust=l, color=gray, style=rounded];\n");
    mpt__tools_dot_group(&to, graph, "", 0);
    for (int i = 0; i < count; i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        for (int k = 0; k < node->inputs; k++) {
            const int from = node->input[k].node;
            if (from < 0 || !mpt__tools_node_shown(mpt_graph_node(graph, from))) continue;
            mpt__tools_put_format(&to, "n%lld -> n%lld;\n", (long long)from, (long long)i);
        }
    }
    mpt__tools_bytes_put_text(&to, "}\n");
    const mpt_status status = mpt__tools_file_replace(path, &to);
    mpt__tools_bytes_free(&to);
    return status;
}

#endif
