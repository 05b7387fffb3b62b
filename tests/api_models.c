/* api_models.c: whole models against PyTorch: the nets of the examples with weights from files
 * under the names that torchvision and Hugging Face give them, ResNet with either stem, BERT also
 * with a padding mask, and two of the layers that those do not have (layered.h). Logits, losses,
 * every gradient and three steps of training in fp32, fp16 and bf16; and how many parameters the
 * models of the papers have. With MPTRAIN_TEST_SHOW in the environment distances are printed. */
#include "../examples/bert.h"
#include "../examples/gpt.h"
#include "../examples/resnet.h"
#include "../examples/vit.h"
#include "layered.h"
#include "models.h"

enum { HEAD = 8, SAMPLES = 512, STEPS = 3, SCALE = 256, NAMES = 128, TAKEN = NAMES * (HEAD + 1) };

/* ---- the models ---- */

typedef struct batch {
    mpt_tensor x, y, positions, types;
} batch;

static mpt_module make_gpt2(mpt_context *ctx, const int64_t *i) {
    gpt_settings s = gpt_defaults;
    s.layers = i[0], s.heads = i[1], s.width = i[2], s.context = i[3], s.vocabulary = i[4];
    return make_gpt(ctx, &s);
}

static mpt_tensor gpt2_loss(mpt_module net, const batch *b, mpt_tensor *logits) {
    mpt_tensor y = hidden(net, b->x, b->positions), table = mpt_parameter(net, "wte.weight");
    *logits = mpt_matmul(y, mpt_transpose(table, 0, 1));
    return mpt_linear_cross_entropy(y, table, b->y, NULL);
}

static mpt_module make_resnet18(mpt_context *ctx, const int64_t *i) {
    return resnet18(ctx, 3, i[2], i[0], true);
}

static mpt_module make_resnet_cifar(mpt_context *ctx, const int64_t *i) {
    return resnet18(ctx, 3, i[2], i[0], false);
}

static mpt_tensor picture_loss(mpt_module net, const batch *b, mpt_tensor *logits) {
    *logits = mpt_forward(net, b->x);
    return mpt_cross_entropy(*logits, b->y, NULL);
}

static mpt_module make_small_vit(mpt_context *ctx, const int64_t *i) {
    const vit_shape s = {i[0], i[1], i[2], i[3], i[4], i[5], 3, i[6], 0.0};
    return make_vit(ctx, &s);
}

static mpt_module make_small_bert(mpt_context *ctx, const int64_t *i) {
    const bert_shape s = {i[0], i[1], i[2], i[3], i[4], i[5], 2};
    return make_bert(ctx, &s);
}

static mpt_tensor bert_loss(mpt_module net, const batch *b, mpt_tensor *logits) {
    *logits = bert_logits(net, b->x, b->positions, b->types);
    return mpt_cross_entropy(mpt_flatten(*logits, 0, 1), mpt_flatten(b->y, 0, 1), NULL);
}

/* The same net, of two layers, run by hand: no token looks at the padding, which is token 0. */
static mpt_tensor bert_mask_loss(mpt_module net, const batch *b, mpt_tensor *logits) {
    const mpt_shape shape = mpt_get_shape(b->x);
    const mpt_tensor seen = mpt_reshape(mpt_ne_scalar(mpt_cast(b->x, MPT_F32), 0),
                                        MPT_SHAPE(shape.dim[0], 1, 1, shape.dim[1]));
    mpt_tensor x = run_child(net, "bert.embeddings.word_embeddings", b->x), y;
    x = mpt_add(x, run_child(net, "bert.embeddings.position_embeddings", b->positions));
    x = mpt_add(x, run_child(net, "bert.embeddings.token_type_embeddings", b->types));
    x = run_child(net, "bert.embeddings.LayerNorm", x);
    for (int i = 0; i < 2; i++) {
        const mpt_module block = mpt_child(mpt_child(net, "bert.encoder.layer"), i ? "1" : "0");
        const mpt_tensor in[4] = {x, x, x, seen};
        mpt_forward_n(mpt_child(block, "attention.self"), in, 4, &y, 1);
        x = run_child(block, "attention.output.LayerNorm", mpt_add(y, x));
        y = run_child(block, "output.dense", mpt_gelu(run_child(block, "intermediate.dense", x)));
        x = run_child(block, "output.LayerNorm", mpt_add(y, x));
    }
    x = mpt_gelu(run_child(net, "cls.predictions.transform.dense", x));
    x = run_child(net, "cls.predictions.transform.LayerNorm", x);
    *logits = mpt_linear(x, mpt_parameter(net, "bert.embeddings.word_embeddings.weight"),
                         mpt_parameter(net, "cls.predictions.bias"), MPT_ACTIVATION_NONE);
    return mpt_cross_entropy(mpt_flatten(*logits, 0, 1), mpt_flatten(b->y, 0, 1), NULL);
}

static mpt_tensor sequence_loss(mpt_module net, const batch *b, mpt_tensor *logits) {
    *logits = mpt_forward(net, b->x);
    return mpt_cross_entropy(*logits, mpt_flatten(b->y, 0, 1), NULL);
}

static mpt_status plain_load(mpt_module net, const char *path, int *loaded) {
    return mpt_load(net, path, NULL, loaded);
}

typedef struct model {
    const char *name, *weights; /* the file's */
    mpt_module (*make)(mpt_context *ctx, const int64_t *ints);
    mpt_status (*load)(mpt_module net, const char *path, int *loaded);
    mpt_tensor (*loss)(mpt_module net, const batch *b, mpt_tensor *logits);
    int pictures_n, pictures_size; /* which of the ints; 0, 0: tokens */
    int tensors;                   /* of the file that are taken */
    bool sgd;                      /* else AdamW, whose steps enlarge errors of gradients near 0 */
} model;

static const model models[] = {
    {"gpt2", "gpt2", make_gpt2, gpt_load, gpt2_loss, 0, 0, 52, false},
    {"resnet18", "resnet18", make_resnet18, plain_load, picture_loss, 3, 1, 122, true},
    {"vit", "vit", make_small_vit, plain_load, picture_loss, 7, 5, 44, false},
    {"bert", "bert", make_small_bert, bert_load, bert_loss, 0, 0, 42, false},
    {"layers2d", "layers2d", make_layers2d, plain_load, picture_loss, 3, 1, 16, true},
    {"layers1d", "layers1d", make_layers1d, plain_load, sequence_loss, 0, 0, 24, true},
    {"resnet_cifar", "resnet_cifar", make_resnet_cifar, plain_load, picture_loss, 3, 1, 122, true},
    {"bert_mask", "bert", make_small_bert, bert_load, bert_mask_loss, 0, 0, 42, false}};
enum { MODELS = sizeof models / sizeof *models };

static mpt_tensor golden_tokens(mpt_context *ctx, const golden_case *c, const char *name) {
    const golden_tensor *t = golden_find(c, name);
    return mpt_from(ctx, MPT_I64, t->shape, t->data);
}

static batch make_batch(mpt_context *ctx, const model *m, const golden_case *c) {
    char label[32];
    batch b;
    b.y = golden_tokens(ctx, c, "y");
    snprintf(label, sizeof label, "%s/x", m->name);
    b.x = m->pictures_n ? random_pictures(ctx, stream_of(label), c->ints[m->pictures_n],
                                          c->ints[m->pictures_size])
                        : golden_tokens(ctx, c, "x");
    const int64_t length = mpt_get_shape(b.x).dim[1];
    b.positions = mpt_arange(ctx, MPT_I64, length);
    b.types = mpt_zeros(ctx, MPT_I64, MPT_SHAPE(length));
    return b;
}

/* ---- runs ---- */

/* The values of a run, as tools/golden_models.py takes them. */
typedef struct results {
    double logits[SAMPLES], loss[STEPS], grads[TAKEN], after[TAKEN];
    double scale[TAKEN]; /* of grads: what an error counts by */
    int64_t n_logits, n_grads, n_after;
} results;

typedef struct names {
    char text[NAMES * 64];
    const char *name[NAMES];
    int count, parameters;
} names;

/* The names, one a line; those of running statistics are no parameters. */
static void read_names(const golden_case *c, names *n) {
    const golden_tensor *t = golden_find(c, "names");
    n->count = n->parameters = 0;
    CHECK(t->count < (int64_t)sizeof n->text);
    memcpy(n->text, t->data, (size_t)t->count);
    n->text[t->count] = 0;
    for (char *at = n->text; at && n->count < NAMES;) {
        n->name[n->count++] = at;
        at = strchr(at, '\n');
        if (at) *at++ = 0;
    }
    for (int i = 0; i < n->count; i++) n->parameters += !strstr(n->name[i], "running_");
}

/* At most `count` values, evenly from all of a tensor; *norm may be NULL. Returns how many. */
static int64_t take(mpt_tensor t, int64_t count, double *out, double *norm, double *mean_square) {
    const int64_t numel = mpt_numel(t), n = numel < count ? numel : count;
    float *values = (float *)calloc((size_t)(numel > 0 ? numel : 1), sizeof *values);
    double sum = 0;
    CHECK_EQ_INT(mpt_read_f32(t, values, numel), MPT_OK);
    for (int64_t i = 0; i < numel; i++) sum += (double)values[i] * values[i];
    for (int64_t i = 0; i < n; i++) out[i] = values[i * numel / n];
    if (norm) *norm = sqrt(sum);
    if (mean_square) *mean_square = sum / (double)(numel ? numel : 1);
    free(values);
    return n;
}

static void take_gradients(mpt_module net, const names *n, results *r) {
    double largest = 0, mean_square;
    r->n_grads = 0;
    for (int i = 0; i < n->count; i++) {
        double *at = r->grads + r->n_grads;
        if (strstr(n->name[i], "running_")) continue;
        int64_t k = take(mpt_grad(mpt_parameter(net, n->name[i])), HEAD, at + 1, at, &mean_square);
        for (int64_t j = 0; j <= k; j++) r->scale[r->n_grads + j] = j ? sqrt(mean_square) : *at;
        if (mean_square > largest) largest = mean_square;
        r->n_grads += k + 1;
    }
    for (int64_t j = 0; j < r->n_grads; j++) /* sums that cancel are rounding, whoever adds them */
        if (r->scale[j] < 1e-3 * sqrt(largest)) r->scale[j] = 1e-3 * sqrt(largest);
}

static mpt_optimizer make_optimizer(mpt_module net, const model *m, double lr) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    sgd.lr = adamw.lr = lr;
    sgd.momentum = 0.9, sgd.weight_decay = 1e-3;
    adamw.eps = 1e-4, adamw.weight_decay = 0.1;
    return m->sgd ? mpt_sgd(net, &sgd) : mpt_adamw(net, &adamw);
}

static void train(const model *m, mpt_module net, const golden_case *c, const names *n,
                  mpt_dtype precision, results *r) {
    mpt_context *ctx = net.context;
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.init_scale = SCALE, sc.fixed = true, sc.enabled = precision == MPT_F16;
    mpt_optimizer optimizer = make_optimizer(net, m, c->reals[0]);
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    batch b = make_batch(ctx, m, c);
    for (int step = 0; step < STEPS; step++) {
        mpt_tensor logits;
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, precision);
        mpt_tensor loss = m->loss(net, &b, &logits);
        mpt_autocast_end(ctx);
        mpt_zero_grad(optimizer);
        if (step == 0) r->n_logits = take(logits, SAMPLES, r->logits, NULL, NULL);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);
        if (step == 0) take_gradients(net, n, r);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        r->loss[step] = mpt_item(loss);
        mpt_step_end(ctx);
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), STEPS);
    r->n_after = 0;
    for (int i = 0; i < n->count; i++) {
        bool buffer = strstr(n->name[i], "running_") != NULL;
        mpt_tensor t = buffer ? mpt_buffer(net, n->name[i]) : mpt_parameter(net, n->name[i]);
        r->n_after += take(t, HEAD, r->after + r->n_after, NULL, NULL);
    }
}

/* ---- comparison ---- */

static const golden_tensor *of_run(const golden_case *c, const char *run, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "%s %s", run, what);
    return golden_find(c, name);
}

/* fp32: four times as far from PyTorch's fp32 as that is from fp64, or its tolerance for one op,
   since another order of sums moves every step. Half: at most twice as far from fp32 as PyTorch's
   half is, under torch.autocast or under our policy. */
static void compare(const golden_case *c, const char *ours, const results *r, const double *scale) {
    static const char *const what[] = {"logits", "loss", "grads", "after"};
    const double *values[] = {r->logits, r->loss, r->grads, r->after};
    const int64_t counts[] = {r->n_logits, STEPS, r->n_grads, r->n_after};
    const bool half = strcmp(ours, "f32") != 0;
    char theirs[2][16];
    snprintf(theirs[0], sizeof theirs[0], half ? "%s torch" : "f64", ours);
    snprintf(theirs[1], sizeof theirs[1], half ? "%s policy" : "f64", ours);
    for (int i = 0; i < 4; i++) {
        const golden_tensor *f32 = of_run(c, "f32", what[i]);
        const double *by = i == 2 ? scale : NULL;
        CHECK_EQ_INT(counts[i], f32->count);
        if (counts[i] != f32->count) continue;
        double got = distance(values[i], NULL, f32, by), allowed = 0, size = 0;
        for (int k = 0; k < 2; k++) {
            double d = distance(NULL, of_run(c, theirs[k], what[i]), f32, by);
            if (d > allowed) allowed = d;
        }
        for (int64_t k = 0; k < f32->count; k++) size += pow(golden_value(f32, k), 2);
        size = by ? 1.0 : sqrt(size / (double)f32->count);
        allowed = half ? 2 * allowed : 4 * allowed > 1.3e-6 * size ? 4 * allowed : 1.3e-6 * size;
        if (getenv("MPTRAIN_TEST_SHOW"))
            printf("\n    %s %s %s: %.3g, allowed %.3g", c->label, ours, what[i], got, allowed);
        if (!(got <= allowed))
            TEST_FAIL_("%s: %s in %s is %.3g off PyTorch's fp32, allowed is %.3g", c->label,
                       what[i], ours, got, allowed);
    }
}

static const char *weights_path(const char *name) {
    static char path[512];
    char file[64];
    const char *folder = getenv("MPTRAIN_GOLDEN");
    snprintf(file, sizeof file, "models_%s.safetensors", name);
    snprintf(path, sizeof path, "%s",
             test_path_(folder && *folder ? folder : "tests/golden", "", file));
    return path;
}

/* False, and the test is skipped, where the build left out what the model needs. */
static bool load_model(const model *m, mpt_module net) {
    mpt_context *ctx = net.context;
    int loaded = -1;
    m->load(net, weights_path(m->weights), &loaded);
    if (strstr(mpt_error(ctx), "built without")) {
        test_lacks = "convolutions, attention and files";
        return false;
    }
    CHECK_EQ_STR(mpt_error(ctx), "");
    CHECK_EQ_INT(loaded, m->tensors);
    return true;
}

static void run_model(const golden_case *c) {
    static const struct {
        const char *name;
        mpt_dtype precision;
    } runs[] = {{"f32", MPT_F32}, {"f16", MPT_F16}, {"bf16", MPT_BF16}};
    static results r;
    static double scale[TAKEN];
    static names n;
    const model *m = models;
    while (strcmp(m->name, c->label) != 0) m++;
    read_names(c, &n);
    for (int i = 0; i < 3; i++) {
        mpt_context *ctx = mpt_create(NULL);
        mpt_module net = m->make(ctx, c->ints);
        if (load_model(m, net)) {
            CHECK_EQ_INT(mpt_parameter_count(net), n.parameters);
            train(m, net, c, &n, runs[i].precision, &r);
            CHECK_EQ_STR(mpt_error(ctx), "");
            if (i == 0) memcpy(scale, r.scale, sizeof scale);
            if (!mpt_failed(ctx)) compare(c, runs[i].name, &r, scale);
        }
        mpt_destroy(ctx);
        if (test_lacks) return;
    }
}

static void run_named(const char *name) {
    golden_file file;
    static golden_case c;
    int found = 0;
    REQUIRE(golden_open(&file, "models.bin"));
    while (golden_next(&file, &c))
        if (strcmp(c.op, "model") == 0 && strcmp(c.label, name) == 0) run_model(&c), found++;
    CHECK_EQ_INT(found, 1);
    golden_close(&file);
}

TEST(gpt2) { run_named("gpt2"); }
TEST(resnet) { run_named("resnet18"); }
TEST(vit) { run_named("vit"); }
TEST(bert) { run_named("bert"); }
TEST(layers2d) { run_named("layers2d"); }
TEST(layers1d) { run_named("layers1d"); }
TEST(resnet_cifar) { run_named("resnet_cifar"); }
TEST(bert_mask) { run_named("bert_mask"); }

/* ---- loading ---- */

/* What an example saves it loads again, by the same rules. */
TEST(saved_and_loaded) {
    static const int64_t ints[MODELS][8] = {{1, 2, 8, 8, 16, 2, 0, 0},  {2, 16, 10, 2, 0, 0, 0, 0},
                                            {8, 1, 2, 8, 4, 8, 10, 2},  {8, 1, 2, 8, 8, 16, 2, 8},
                                            {4, 8, 10, 2, 0, 0, 0, 0},  {8, 2, 6, 9, 1, 5, 0, 0},
                                            {2, 16, 10, 2, 0, 0, 0, 0}, {8, 1, 2, 8, 8, 16, 2, 8}};
    const char *path = test_tmp_path("model.safetensors");
    for (int i = 0; i < MODELS; i++) {
        mpt_context *ctx = mpt_create(NULL);
        mpt_module a = models[i].make(ctx, ints[i]), b = models[i].make(ctx, ints[i]);
        mpt_set_label(b, "other");
        CHECK(mpt_failed(ctx) || mpt_module_hash(a) != mpt_module_hash(b));
        mpt_save(a, path);
        models[i].load(b, path, NULL);
        if (strstr(mpt_error(ctx), "built without")) test_lacks = "convolutions, attention, files";
        if (!test_lacks) CHECK_EQ_STR(mpt_error(ctx), "");
        CHECK(mpt_failed(ctx) || mpt_module_hash(a) == mpt_module_hash(b));
        mpt_destroy(ctx);
        remove(path);
    }
}

/* A file for another shape, or of another model, is refused with the names that tell why. */
TEST(other_shapes_are_refused) {
    static const int64_t ints[8] = {4, 2, 16, 16, 61, 3, 0, 0};
    static const struct {
        int model, file;
        const char *text;
    } rows[] = {{0, 0,
                 "transformer.h.0.attn.c_attn.bias, renamed to h.0.attn.in_proj_bias has "
                 "shape [72], the parameter [48]"},
                {0, 2, "tensors have no parameter, first class_token"}};
    for (int i = 0; i < 2; i++) {
        mpt_context *ctx = mpt_create(NULL);
        mpt_module net = models[rows[i].model].make(ctx, ints);
        int loaded = -1;
        models[rows[i].model].load(net, weights_path(models[rows[i].file].weights), &loaded);
        if (strstr(mpt_error(ctx), "built without")) test_lacks = "attention and files";
        if (!test_lacks) CHECK_CONTAINS(mpt_error(ctx), rows[i].text);
        CHECK_EQ_INT(loaded, 0);
        mpt_destroy(ctx);
    }
}

/* ---- the models of the papers ---- */

/* On a backend that computes nothing: what torchvision and Hugging Face count. */
TEST(parameter_counts) {
    static const vit_shape base = {768, 12, 12, 3072, 16, 224, 3, 1000, 0.0};
    static const bert_shape bert = {768, 12, 12, 3072, 512, 30522, 2};
    static const int64_t counts[] = {11689512, 86567656, 124439808, 109514298};
    gpt_settings gpt = gpt_defaults;
    gpt.layers = gpt.heads = 12, gpt.width = 768, gpt.context = 1024, gpt.vocabulary = 50257;
    for (int i = 0; i < 4; i++) {
        mpt_context *ctx = mpt_create(NULL);
        mpt_module net = i == 0   ? resnet18(ctx, 3, 1000, 64, true)
                         : i == 1 ? make_vit(ctx, &base)
                         : i == 2 ? make_gpt(ctx, &gpt)
                                  : make_bert(ctx, &bert);
        const int64_t numel = mpt_parameter_numel(net);
        if (strstr(mpt_error(ctx), "built without")) test_lacks = "convolutions and attention";
        if (!test_lacks) CHECK_EQ_STR(mpt_error(ctx), "");
        if (!test_lacks) CHECK_EQ_INT(numel, counts[i]);
        mpt_destroy(ctx);
    }
}

/* ---- what gpt writes ---- */

/* Draws of 0, 1/8, .. fall on the likeliest that together have top_p, each by its share of them. */
TEST(tokens_of_top_p) {
    static float p[4] = {0.5f, 0.25f, 0.125f, 0.125f};
    static int64_t token[4] = {30, 10, 20, 40};
    const candidates all = {p, token, 4}, two = {p, token, 2};
    static const struct {
        double top_p;
        int64_t wanted[8];
    } rows[] = {{1.0, {30, 30, 30, 30, 10, 10, 20, 40}},    {9.0, {30, 30, 30, 30, 10, 10, 20, 40}},
                {0.75, {30, 30, 30, 30, 30, 30, 10, 10}}, /* the bound itself: no more are needed */
                {0.5001, {30, 30, 30, 30, 30, 30, 10, 10}}, {0.5, {30, 30, 30, 30, 30, 30, 30, 30}},
                {1e-9, {30, 30, 30, 30, 30, 30, 30, 30}}};
    for (int r = 0; r < 6; r++)
        for (int i = 0; i < 8; i++)
            CHECK_EQ_INT(pick_token(&all, rows[r].top_p, i / 8.0), rows[r].wanted[i]);
    for (int i = 0; i < 8; i++) CHECK_EQ_INT(pick_token(&two, 1.0, i / 8.0), i < 6 ? 30 : 10);
    CHECK_EQ_INT(pick_token(&all, 0.8, 1.0), 20);
}

/* A net whose logits are logarithms of known probabilities, whatever it reads. */
static mpt_module make_oracle(mpt_context *ctx, gpt_settings *s, const double *p, int64_t count) {
    float table[64] = {0}, bias[8] = {1}, zeros[8] = {0};
    *s = gpt_defaults;
    s->layers = s->heads = 1, s->width = s->context = 8, s->vocabulary = count;
    mpt_module net = make_gpt(ctx, s);
    for (int64_t i = 0; i < count; i++) table[8 * i] = (float)log(p[i]);
    mpt_write(mpt_parameter(net, "wte.weight"), table, (size_t)count * 8 * sizeof *table);
    mpt_write(mpt_parameter(net, "ln_f.weight"), zeros, sizeof zeros);
    mpt_write(mpt_parameter(net, "ln_f.bias"), bias, sizeof bias);
    return net;
}

/* How often each token comes: by its probability among those that --temperature, --top-k and
   --top-p leave. The deviation of a share of 2000 draws is 0.011 at most. */
TEST(tokens_drawn) {
    enum { TOKENS = 6, DRAWS = 2000 };
    static const double p[TOKENS] = {0.04, 0.36, 0.16, 0.09, 0.25, 0.10};
    static const struct {
        double temperature, top_p;
        int64_t top_k;
        double share[TOKENS];
    } rows[] = {{1, 1, 6, {0.04, 0.36, 0.16, 0.09, 0.25, 0.10}},
                {1, 1, 2, {0, 0.36 / 0.61, 0, 0, 0.25 / 0.61, 0}},
                {1, 0.7, 6, {0, 0.36 / 0.77, 0.16 / 0.77, 0, 0.25 / 0.77, 0}},
                {1, 0.7, 2, {0, 0.36 / 0.61, 0, 0, 0.25 / 0.61, 0}},
                {2, 0.4, 3, {0, 0.6 / 1.1, 0, 0, 0.5 / 1.1, 0}}, /* roots, of a sum of 2.316 */
                {1, 1, 1, {0, 1, 0, 0, 0, 0}}};
    for (int r = 0; r < 6; r++) {
        float values[TOKENS] = {0};
        int64_t tokens[TOKENS] = {0}, seen[2] = {3, 1}, counts[TOKENS] = {0};
        const candidates c = {values, tokens, rows[r].top_k};
        gpt_settings s;
        mpt_context *ctx = mpt_create(NULL);
        mpt_module net = make_oracle(ctx, &s, p, TOKENS);
        s.temperature = rows[r].temperature, s.top_p = rows[r].top_p;
        for (int i = 0; i < DRAWS && !mpt_failed(ctx); i++)
            counts[next_token(ctx, net, &s, seen, 2, &c)]++;
        if (strstr(mpt_error(ctx), "built without")) test_lacks = "attention";
        if (!test_lacks) CHECK_EQ_STR(mpt_error(ctx), "");
        for (int i = 0; i < TOKENS && !mpt_failed(ctx); i++) {
            const double share = (double)counts[i] / DRAWS;
            CHECK_NEAR(share, rows[r].share[i], rows[r].share[i] > 0 ? 0.04 : 0.0);
        }
        mpt_destroy(ctx);
    }
}

TEST_TABLE = {T(gpt2),
              T(resnet),
              T(vit),
              T(bert),
              T(layers2d),
              T(layers1d),
              T(resnet_cifar),
              T(bert_mask),
              T(saved_and_loaded),
              T(other_shapes_are_refused),
              T(parameter_counts),
              T(tokens_of_top_p),
              T(tokens_drawn)};
TEST_MAIN
