/* ----
 * watch/trace.c: the net seen: which ops a forward pass calls, on what, as a graph.
 *
 * A trace listens to op calls while the net runs once. Values are known by their tensors; storages
 * are held meanwhile, so that none is taken for a younger one. What a call of a user's op does
 * inside is that op's own.
 * ---- */
#ifndef MPT__WATCH_TRACE_INCLUDED
#define MPT__WATCH_TRACE_INCLUDED

#include "watch/profile.c"

typedef struct {
    mpt__id id;
    mpt_node *nodes;
    int64_t count, capacity;
} mpt__graph;

MPT__HANDLES(graph, MPT__GRAPH)

/* A tensor that a node has made. */
typedef struct {
    const mpt__tensor *tensor;
    uint32_t generation, storage, version; /* version: of the storage */
    int64_t offset;
    mpt_edge edge;
} mpt__traced;

typedef struct {
    mpt_context *context;
    const mpt__module *net;
    mpt__graph *graph;
    mpt__traced *values;
    int64_t count, capacity;
    double flop;  /* of launches since the last op */
    int user_ops; /* that run, each within the one before */
    uint32_t written; /* the storage that the op under way has written in place */
    bool changed;     /* an input of it is not what its node made */
} mpt__tracing;

/* ==== Nodes ==== */

static void mpt__graph_end(mpt_context *ctx, void *object) {
    mpt__graph *graph = (mpt__graph *)object;
    for (int64_t i = 0; i < graph->count; i++) {
        mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].name);
        mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].module);
        mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].layer);
        if (graph->nodes[i].kind == MPT_NODE_CONSTANT) mpt_release(graph->nodes[i].value);
    }
    mpt__room_free(ctx, graph->nodes, graph->capacity);
}

/* A node without inputs and outputs; NULL with an error recorded. */
static mpt_node *mpt__tracing_node(mpt__tracing *trace, mpt_node_kind kind, const char *name,
    const char *module, const char *layer) {
    mpt_context *ctx = trace->context;
    mpt__graph *graph = trace->graph;
    if (!mpt__room(ctx, graph->nodes, graph->capacity, graph->count + 1)) return NULL;
    mpt_node *node = &graph->nodes[graph->count++];
    mpt__zero(*node);
    node->kind = kind;
    node->compute = MPT_DTYPE_NONE;
    node->name = mpt__host_text(ctx, name);
    node->module = mpt__host_text(ctx, module);
    node->layer = mpt__host_text(ctx, layer);
    return node->name && node->module && node->layer ? node : NULL;
}

/* Gives the last node an output. */
static void mpt__tracing_output(mpt__tracing *trace, const mpt__tensor *tensor) {
    mpt_context *ctx = trace->context;
    mpt_node *node = &trace->graph->nodes[trace->graph->count - 1];
    if (!mpt__room(ctx, trace->values, trace->capacity, trace->count + 1)) return;
    mpt__traced *value = &trace->values[trace->count++];
    value->tensor = tensor, value->generation = tensor->generation;
    value->storage = tensor->storage, value->offset = tensor->offset;
    value->version = tensor->storage ? ctx->storages[tensor->storage].version : 0;
    value->edge.node = (int)trace->graph->count - 1, value->edge.output = node->outputs;
    if (tensor->storage) ctx->storages[tensor->storage].references++;
    node->dtype[node->outputs] = (mpt_dtype)tensor->dtype;
    node->shape[node->outputs++] = tensor->shape;
}

/* A module's path below the net's. */
static const char *mpt__tracing_path(const mpt__tracing *trace, const mpt__module *module) {
    if (!module || module == trace->net) return "";
    return mpt__relative_path(
        trace->context, trace->net, mpt__path_text(trace->context, module->path));
}

/* The path of a buffer of the net; NULL if a tensor is none. */
static const char *mpt__tracing_buffer(mpt__tracing *trace, const mpt__tensor *tensor) {
    mpt__walk walk;
    mpt__buffer buffer;
    mpt__walk_begin(&walk, trace->context, mpt__module_slot(trace->context, trace->net->id.slot));
    while (mpt__walk_buffer(&walk, &buffer))
        if (buffer.tensor == tensor) return buffer.path;
    return NULL;
}

/* A parameter, a buffer, or a tensor that nothing traced has made. */
static mpt_edge mpt__tracing_source(mpt__tracing *trace, const mpt__tensor *tensor) {
    mpt_context *ctx = trace->context;
    const char *path = tensor->parameter ? ctx->parameters[tensor->parameter - 1].path
                                         : mpt__tracing_buffer(trace, tensor);
    const mpt_node_kind kind = tensor->parameter ? MPT_NODE_PARAMETER
        : path                                   ? MPT_NODE_BUFFER
                                                 : MPT_NODE_CONSTANT;
    const char *name = path ? mpt__relative_path(ctx, trace->net, path) : "constant";
    const char *dot = strrchr(name, '.');
    char holder[MPT__PATH_BYTES];
    mpt__format_text(holder, sizeof holder, "%s", name);
    holder[dot ? dot - name : 0] = '\0';
    mpt_edge edge = {(int)trace->graph->count, 0};
    mpt_node *node = mpt__tracing_node(trace, kind, name, holder, "");
    if (!node) return edge;
    node->trainable = tensor->parameter && (tensor->flags & MPT__REQUIRES_GRAD);
    node->value = mpt__handle(ctx,
        kind == MPT_NODE_CONSTANT ? mpt__tensor_outside(ctx, tensor, MPT__KEPT | MPT__INFERENCE)
                                  : tensor);
    mpt__tracing_output(trace, tensor);
    return edge;
}

/* Whether a tensor's memory was written since, by what is no op on that tensor. */
static bool mpt__tracing_stale(const mpt__tracing *trace, const mpt__traced *value) {
    const uint32_t now = value->storage ? trace->context->storages[value->storage].version : 0;
    return value->storage && now != value->version + (value->storage == trace->written);
}

/* Where a tensor comes from. What was detached has its storage from there. */
static mpt_edge mpt__tracing_find(mpt__tracing *trace, const mpt__tensor *tensor) {
    mpt_edge none = {-1, 0};
    if (!tensor) return none;
    for (int64_t i = trace->count; i-- > 0;) {
        const mpt__traced *value = &trace->values[i];
        if (value->tensor != tensor || value->generation != tensor->generation) continue;
        trace->changed = trace->changed || mpt__tracing_stale(trace, value);
        return value->edge;
    }
    for (int64_t i = trace->count; i-- > 0 && !tensor->parameter && tensor->storage;) {
        const mpt__traced *value = &trace->values[i];
        if (value->storage != tensor->storage || value->offset != tensor->offset) continue;
        trace->changed = trace->changed || mpt__tracing_stale(trace, value);
        return value->edge;
    }
    return mpt__tracing_source(trace, tensor);
}

/* ==== Listening ==== */

static void mpt__tracing_launch(MPT__HEARS) {
    mpt__tracing *trace = (mpt__tracing *)user;
    trace->flop += mpt__launch_cost(ctx, (const mpt__launch *)what).flop;
}

static void mpt__tracing_user_op(MPT__HEARS) {
    (void)ctx, (void)what;
    ((mpt__tracing *)user)->user_ops++;
}

/* The module whose activation a layer has taken into its own call: the next one beside it. */
static const mpt__module *mpt__tracing_activation(
    mpt_context *ctx, const mpt__module *module, int activation) {
    const mpt__module *above =
        module && module->parent ? mpt__module_slot(ctx, module->parent) : NULL;
    for (int64_t i = 0; above && i + 1 < above->child_count; i++) {
        const mpt__module *next = mpt__module_slot(ctx, above->children[i + 1].slot);
        if (above->children[i].slot == module->id.slot &&
            mpt__layer_rows[next->layer].activation == activation)
            return next;
    }
    return module;
}

/* The last node's results, through an activation that was part of its call, as a node behind it. */
static void mpt__tracing_activate(
    mpt__tracing *trace, const mpt__frame *frame, const mpt__module *module, int activation) {
    static const char *const names[] = {"none", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid"};
    mpt_context *ctx = trace->context;
    const mpt__module *layer = mpt__tracing_activation(ctx, module, activation);
    mpt_node *node = mpt__tracing_node(trace, MPT_NODE_OP, names[activation],
        mpt__tracing_path(trace, layer), layer ? layer->cls.name : "");
    if (!node) return;
    node->inputs = 1;
    node->input[0].node = (int)trace->graph->count - 2;
    mpt__tracing_output(trace, frame->out[0]);
}

static void mpt__tracing_op(MPT__HEARS) {
    mpt__tracing *trace = (mpt__tracing *)user;
    const mpt__frame *frame = (const mpt__frame *)what;
    const bool own = frame->op == MPT__OP_user;
    mpt_edge input[MPT__MAX_INPUTS];
    if (own) trace->user_ops--;
    if (trace->user_ops > 0) return;
    mpt__wait_no_more(ctx); /* a convolution, which a norm would take in its own launch */
    const mpt__tensor *out = frame->out[0];
    trace->changed = false, trace->written = 0;
    for (int i = 0; i < frame->n_in && out; i++)
        if (frame->in[i] && !frame->is_view && frame->in[i]->storage == out->storage)
            trace->written = out->storage;
    for (int i = 0; i < frame->n_in; i++) input[i] = mpt__tracing_find(trace, frame->in[i]);
    const mpt__op *op = own ? (const mpt__op *)mpt__object_slot(
                                  ctx, MPT__USER_OP, (uint32_t)frame->attributes->index[0])
                            : NULL;
    const mpt__attributes *told = frame->attributes;
    const int activation = own            ? MPT_ACTIVATION_NONE
        : frame->op == MPT__OP_batch_norm ? told->index[2] != 0 /* relu */
        : frame->n_in > 3                 ? (int)MPT_ACTIVATION_NONE /* a cell's own, each step */
                                          : told->activation;
    const mpt__module *module = ctx->module ? mpt__module_slot(ctx, ctx->module) : NULL;
    mpt_node *node = mpt__tracing_node(trace, own ? MPT_NODE_USER_OP : MPT_NODE_OP,
        op ? op->cls.name : frame->row->name, mpt__tracing_path(trace, module),
        module ? module->cls.name : "");
    if (!node) return;
    node->compute = frame->compute;
    node->changed = trace->changed;
    mpt__copy_dims(node->index, told->index, MPT_MAX_RANK);
    for (int i = 0; i < 2; i++) node->number[i] = told->imm[i];
    node->rank = told->rank, node->activation = told->activation;
    node->reduction = told->reduction;
    node->flop = trace->flop;
    trace->flop = 0;
    node->inputs = frame->n_in;
    for (int i = 0; i < frame->n_in; i++) node->input[i] = input[i];
    for (int i = 0; i < frame->n_out; i++)
        if (frame->out[i]) mpt__tracing_output(trace, frame->out[i]);
    if (activation && frame->out[0]) mpt__tracing_activate(trace, frame, module, activation);
}

/* ==== Tracing ==== */

static bool mpt__tracing_inputs(mpt__tracing *trace, const mpt_tensor *inputs, int n_inputs) {
    for (int i = 0; i < n_inputs; i++) {
        char name[32];
        mpt__format_text(name, sizeof name, n_inputs > 1 ? "input%d" : "input", i + 1);
        const mpt__tensor *tensor = mpt__at(trace->context, inputs[i], "input");
        if (!tensor || !mpt__tracing_node(trace, MPT_NODE_INPUT, name, "", "")) return false;
        mpt__tracing_output(trace, tensor);
    }
    return mpt__ok(trace->context);
}

/* Runs the net; its results become nodes. */
static void mpt__tracing_run(mpt__tracing *trace, mpt_module net, const mpt_tensor *inputs, int n) {
    mpt_context *ctx = trace->context;
    mpt_tensor out[MPT__MAX_OUTPUTS];
    const int n_out = trace->net->cls.n_outputs > 1 ? trace->net->cls.n_outputs : 1;
    if (n_out > MPT__MAX_OUTPUTS) {
        mpt__error(ctx, UNSUPPORTED, "a net of %d outputs; expected at most %d", n_out,
            (int)MPT__MAX_OUTPUTS);
        return;
    }
    if (mpt__listen(ctx, MPT__OP_CALLED, mpt__tracing_op, trace) != MPT_OK ||
        mpt__listen(ctx, MPT__USER_OP_BEGAN, mpt__tracing_user_op, trace) != MPT_OK ||
        mpt__listen(ctx, MPT__LAUNCHED, mpt__tracing_launch, trace) != MPT_OK ||
        mpt_forward_n(net, inputs, n, out, n_out) != MPT_OK)
        return;
    trace->written = 0;
    for (int i = 0; i < n_out; i++) {
        const mpt__tensor *result = mpt__live(ctx, out[i]);
        trace->changed = false;
        const mpt_edge edge = mpt__tracing_find(trace, result);
        char name[32];
        mpt__format_text(name, sizeof name, n_out > 1 ? "output%d" : "output", i + 1);
        mpt_node *node = result ? mpt__tracing_node(trace, MPT_NODE_OUTPUT, name, "", "") : NULL;
        if (!node) continue;
        node->inputs = 1, node->input[0] = edge;
        node->changed = trace->changed;
        mpt__tracing_output(trace, result);
    }
    for (int64_t i = 0; i < trace->count; i++) {
        mpt_node *node = &trace->graph->nodes[trace->values[i].edge.node];
        if (node->kind == MPT_NODE_CONSTANT)
            node->changed = mpt__tracing_stale(trace, &trace->values[i]);
    }
}

/* In inference, with what a forward pass counts as it was. */
static void mpt__tracing_quietly(mpt__tracing *trace, mpt_module net, const mpt_tensor *in, int n) {
    mpt_context *ctx = trace->context;
    const mpt__counters_state now = ctx->now;
    const mpt__module *found = trace->net;
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    mpt__modes_begin(ctx, mpt__module_slot(ctx, found->id.slot), false);
    if (mpt__tracing_inputs(trace, in, n)) mpt__tracing_run(trace, net, in, n);
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__tracing_launch);
    mpt__listen_no_more(ctx, MPT__USER_OP_BEGAN, mpt__tracing_user_op);
    mpt__listen_no_more(ctx, MPT__OP_CALLED, mpt__tracing_op);
    mpt__modes_end(ctx, mpt__module_slot(ctx, found->id.slot));
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    ctx->now = now;
    for (int64_t i = 0; i < trace->count; i++)
        if (trace->values[i].storage) mpt__storage_release(ctx, trace->values[i].storage);
    mpt__room_free(ctx, trace->values, trace->capacity);
}

mpt_graph mpt_trace(mpt_module net, const mpt_tensor *inputs, int n_inputs) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = net.context;
    mpt__tracing trace;
    mpt__zero(trace);
    trace.context = ctx;
    trace.net = mpt__module_frozen(net, "mpt_trace");
    if (!trace.net) return mpt__graph_handle(ctx, NULL);
    if (!inputs || n_inputs < 1)
        mpt__error(
            ctx, ARGUMENT, "expected an array of 1 input or more, got %d", inputs ? n_inputs : 0);
    else if (ctx->recorder || ctx->in_backward || ctx->sliced || mpt__is_capturing(ctx))
        mpt__error(ctx, STATE,
            "a recording, a captured step or a backward pass is under way; trace before it");
    for (int i = 0; i < n_inputs && mpt__ok(ctx); i++) mpt__at(ctx, inputs[i], "input");
    if (mpt__ok(ctx))
        trace.graph = (mpt__graph *)mpt__object_make(ctx, MPT__GRAPH, sizeof *trace.graph);
    if (!trace.graph) return mpt__graph_handle(ctx, NULL);
    mpt__tracing_quietly(&trace, net, inputs, n_inputs);
    if (mpt__ok(ctx)) return mpt__graph_handle(ctx, trace.graph);
    mpt__object_free(ctx, MPT__GRAPH, trace.graph->id.slot);
    return mpt__graph_handle(ctx, NULL);
}

int mpt_graph_count(mpt_graph graph) {
    const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_count");
    return found ? (int)found->count : -1;
}

const mpt_node *mpt_graph_node(mpt_graph graph, int index) {
    const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_node");
    if (!found) return NULL;
    if (index >= 0 && index < found->count) return &found->nodes[index];
    mpt__error(graph.context, ARGUMENT, "node %d: the graph has %lld of them", index, found->count);
    return NULL;
}

mpt_status mpt_graph_destroy(mpt_graph graph) {
    const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_destroy");
    if (found) mpt__object_free(graph.context, MPT__GRAPH, found->id.slot);
    return mpt__status_of(graph.context);
}

#endif
