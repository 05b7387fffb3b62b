/* others.c: the nets of small.h trained by other libraries in C, as subjects for peers.py, which
   compiles this once for each of them: -DOTHER_KANN, -DOTHER_GENANN or -DOTHER_GGML, with its
   folder on the path. A net that the library cannot train is an error.
       others --serve    net NAME */
#include "measure.h"
#include "small.h"

typedef struct other {
    const small_net *net;
    float *x, *y; /* of a batch: inputs, and what is to come out */
    void *model, *state;
} other;

/* Targets are numbers, or for cross entropy a one for the class. */
static void make_targets(const other *o) {
    const int n = small_outputs(o->net);
    small_fill(o->x, o->net->batch * small_inputs(o->net));
    if (o->net->squared) small_fill(o->y, o->net->batch * n);
    for (int i = 0; i < o->net->batch && !o->net->squared; i++) o->y[i * n + i % n] = 1;
}

#ifdef OTHER_KANN
#include "kann.h"
#ifdef HAVE_CBLAS
void openblas_set_num_threads(int);
#endif

static const char *other_make(other *o) {
    const small_net *net = o->net;
#ifdef HAVE_CBLAS
    openblas_set_num_threads(1);
#endif
    kad_node_t *t = kann_layer_input(net->sizes[0]);
    for (int i = 1; i < net->layers; i++) {
        t = kann_layer_dense(t, net->sizes[i]);
        t = net->tanh ? kad_tanh(t) : kad_relu(t);
    }
    t = kann_layer_cost(t, small_outputs(net), net->squared ? KANN_C_MSE : KANN_C_CEM);
    kann_t *model = kann_new(t, 0);
    kann_switch(model, 1);
    kann_set_batch_size(model, net->batch);
    kann_feed_bind(model, KANN_F_IN, 0, &o->x);
    kann_feed_bind(model, KANN_F_TRUTH, 0, &o->y);
    o->model = model, o->state = calloc((size_t)kann_size_var(model), sizeof(float));
    return NULL;
}

static void other_step(void *self) {
    other *o = (other *)self;
    kann_t *model = (kann_t *)o->model;
    const int n = kann_size_var(model);
    kann_cost(model, 0, 1);
    if (o->net->rmsprop)
        kann_RMSprop(n, 1e-6f, NULL, 0.9f, model->g, model->x, (float *)o->state);
    else
        kad_saxpy(n, -1e-4f, model->g, model->x);
}

#elif defined(OTHER_GENANN)
#include "genann.h"

/* It trains one row at a time, by SGD on squared errors, in double, with sigmoids. */
static const char *other_make(other *o) {
    const small_net *net = o->net;
    if (net->layers != 2 || !net->squared || net->rmsprop) return "genann has no such net";
    genann *model = genann_init(net->sizes[0], 1, net->sizes[1], net->sizes[2]);
    const int in = net->batch * net->sizes[0], out = net->batch * net->sizes[2];
    double *rows = (double *)malloc((size_t)(in + out) * sizeof *rows);
    model->activation_output = genann_act_linear;
    for (int i = 0; i < in; i++) rows[i] = (double)o->x[i];
    for (int i = 0; i < out; i++) rows[in + i] = (double)o->y[i];
    o->model = model, o->state = rows;
    return NULL;
}

static void other_step(void *self) {
    const other *o = (const other *)self;
    const int in = o->net->sizes[0], out = small_outputs(o->net);
    const double *x = (const double *)o->state, *y = x + o->net->batch * in;
    for (int i = 0; i < o->net->batch; i++)
        genann_train((const genann *)o->model, x + i * in, y + i * out, 1e-6);
}

#elif defined(OTHER_GGML)
#include "ggml-cpu.h"
#include "ggml-opt.h"

static struct ggml_tensor *layer(struct ggml_context *compute, struct ggml_context *weights,
                                 struct ggml_tensor *x, int in, int out) {
    struct ggml_tensor *w = ggml_new_tensor_2d(weights, GGML_TYPE_F32, in, out);
    struct ggml_tensor *b = ggml_new_tensor_1d(weights, GGML_TYPE_F32, out);
    ggml_set_param(w);
    ggml_set_param(b);
    return ggml_add(compute, ggml_mul_mat(compute, w, x), b);
}

static struct ggml_opt_optimizer_params rates(void *user) {
    struct ggml_opt_optimizer_params p = ggml_opt_get_default_optimizer_params(user);
    p.sgd.alpha = 1e-4f, p.sgd.wd = 0.0f;
    return p;
}

/* SGD in place of RMSprop, which it has not; it has no tanh to go back through either. */
static const char *other_make(other *o) {
    const small_net *net = o->net;
    struct ggml_init_params sizes = {(size_t)1 << 24, NULL, true};
    struct ggml_context *weights = ggml_init(sizes), *compute = ggml_init(sizes);
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);
    ggml_backend_sched_t schedule = ggml_backend_sched_new(&backend, NULL, 1, 2048, false, true);
    struct ggml_tensor *in = ggml_new_tensor_2d(weights, GGML_TYPE_F32, net->sizes[0], net->batch);
    struct ggml_tensor *out = in;
    if (net->tanh) return "ggml has no gradient of tanh";
    ggml_set_input(in);
    for (int i = 0; i < net->layers; i++) {
        if (i > 0) out = ggml_relu(compute, out);
        out = layer(compute, weights, out, net->sizes[i], net->sizes[i + 1]);
    }
    ggml_set_output(out);
    if (!ggml_backend_alloc_ctx_tensors(weights, backend)) return "ggml found no memory";
    for (struct ggml_tensor *t = ggml_get_first_tensor(weights); t;
         t = ggml_get_next_tensor(weights, t)) {
        float *values = (float *)malloc(ggml_nbytes(t));
        small_fill(values, (int)ggml_nelements(t));
        for (int64_t i = 0; i < ggml_nelements(t); i++) values[i] *= 0.1f;
        ggml_backend_tensor_set(t, t == in ? o->x : values, 0, ggml_nbytes(t));
        free(values);
    }
    struct ggml_opt_params p = ggml_opt_default_params(
        schedule, net->squared ? GGML_OPT_LOSS_TYPE_MEAN_SQUARED_ERROR
                               : GGML_OPT_LOSS_TYPE_CROSS_ENTROPY);
    p.ctx_compute = compute, p.inputs = in, p.outputs = out;
    p.optimizer = GGML_OPT_OPTIMIZER_TYPE_SGD, p.get_opt_pars = rates;
    ggml_opt_context_t model = ggml_opt_init(p);
    ggml_opt_alloc(model, true);
    ggml_backend_tensor_set(ggml_opt_labels(model), o->y, 0,
                            ggml_nbytes(ggml_opt_labels(model)));
    ggml_opt_eval(model, NULL);
    o->model = model;
    return NULL;
}

static void other_step(void *self) {
    ggml_opt_context_t model = (ggml_opt_context_t)((other *)self)->model;
    ggml_opt_alloc(model, true);
    ggml_opt_eval(model, NULL);
}
#endif

/* NAME. What is made lives as long as the program. */
static bool make_other(subject *s, int argc, char **argv, char *error, size_t size) {
    other *o = (other *)calloc(1, sizeof *o);
    if (argc < 1 || !o || !(o->net = small_find(argv[0])))
        return snprintf(error, size, "expected NAME"), free(o), false;
    const size_t batch = (size_t)o->net->batch;
    o->x = (float *)calloc(batch * (size_t)small_inputs(o->net), sizeof *o->x);
    o->y = (float *)calloc(batch * (size_t)small_outputs(o->net), sizeof *o->y);
    if (!o->x || !o->y) return snprintf(error, size, "out of memory"), false;
    make_targets(o);
    const char *wrong = other_make(o);
    if (wrong) return snprintf(error, size, "%s", wrong), false;
    s->run = other_step, s->self = o, s->work = small_work(o->net);
    return true;
}

int main(int argc, char **argv) {
    static const subject_maker makers[] = {{"net", make_other}, {NULL, NULL}};
    (void)argc, (void)argv;
    return measure_serve(makers);
}
