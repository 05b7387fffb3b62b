/* api_states8.c: moments of 8 bits: the codes, largest magnitudes and weights are those of a plain
 * loop; threads, levels, resumes and replays change no bit; a skipped step changes nothing; small
 * tensors keep fp32; the memory is a quarter. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "files.h"

#include <math.h>

enum { SIZES = 3, MOST = 5000, STEPS = 20, BLOCK = 256, KINDS = 6 };
static const int sizes[SIZES] = {4095, 4096, 5000}; /* the first one is too small for codes */
static const char *const paths[SIZES] = {"0.weight", "1.weight", "2.weight"};

static mpt_context *new_context(int threads, mpt_isa isa) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.isa = isa;
    config.debug = threads == 1;
    return mpt_create(&config);
}

/* Layers of one output each, which nobody calls. */
static mpt_module new_net(mpt_context *context) {
    mpt_module net = mpt_sequential(context, mpt_nn_linear_no_bias(context, sizes[0], 1),
        mpt_nn_linear_no_bias(context, sizes[1], 1), mpt_nn_linear_no_bias(context, sizes[2], 1),
        MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 0.5, 0));
    return net;
}

static mpt_optimizer new_optimizer(mpt_module net, int kind, int bits) {
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    mpt_lion_config lion = mpt_lion_config_default();
    adam.state_bits = adamw.state_bits = sgd.state_bits = rmsprop.state_bits = lion.state_bits =
        bits;
    adam.weight_decay = 0.01, adam.amsgrad = kind == 2, adam.maximize = kind == 2;
    sgd.momentum = 0.9, sgd.lr = 0.01, rmsprop.momentum = 0.5, rmsprop.lr = 1e-3;
    switch (kind) {
    case 0:
    case 2:
        return mpt_adam(net, &adam);
    case 1:
        return mpt_adamw(net, &adamw);
    case 3:
        return mpt_sgd(net, &sgd);
    case 4:
        return mpt_rmsprop(net, &rmsprop);
    default:
        return mpt_lion(net, &lion);
    }
}

static bool tame; /* gradients without the squares that some levels take for 0 */

/* Gradients whose blocks are of different sizes, some of them 0 or nearly so. */
static void fill_gradient(float *g, int n, int step, int salt) {
    static const float scales[] = {1, 1e-3f, 0, 30, 1e-18f, 0.1f, 1e-41f};
    uint32_t state = (uint32_t)(step * 7919 + salt * 104729 + 1);
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float u = (float)(int32_t)state / 2147483648.0f;
        if (i % 11 == 3) u = u * u * u * u * u;
        if (i % 13 == 5) u = 0;
        g[i] = u * scales[(i / BLOCK + salt) % (tame ? 4 : 7)];
        if (tame && fabsf(g[i]) < 1e-12f) g[i] = 0;
    }
}

/* A step whose gradients are these times `factor`. */
static void step_by(mpt_module net, mpt_optimizer optimizer, mpt_scaler *scaler, int step,
                    double factor) {
    mpt_context *context = net.context;
    static float g[MOST];
    mpt_tensor loss = {0, 0, 0};
    mpt_step_begin(context);
    mpt_zero_grad(optimizer);
    for (int k = 0; k < SIZES; k++) {
        fill_gradient(g, sizes[k], step, k);
        mpt_tensor parameter = mpt_parameter(net, paths[k]);
        mpt_shape shape = mpt_get_shape(parameter);
        mpt_tensor gradient = mpt_from(context, MPT_F32, shape, g);
        mpt_tensor part = mpt_sum(mpt_mul(mpt_cast(parameter, MPT_F32), gradient), MPT_ALL_DIMS,
                                  false);
        loss = k == 0 ? part : mpt_add(loss, part);
    }
    loss = mpt_mul_scalar(loss, factor);
    mpt_backward(scaler ? mpt_scale_loss(*scaler, loss) : loss);
    if (scaler) {
        mpt_scaler_step(*scaler, optimizer);
        mpt_scaler_update(*scaler);
    } else {
        mpt_step(optimizer);
    }
    mpt_step_end(context);
}

/* ---- the plain loop ---- */

static double books[2][256]; /* of numbers with a sign, and without */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void make_books(void) {
    for (int kind = 0; kind < 2; kind++) {
        int n = 0;
        for (int i = 0; i < 7; i++) {
            const int parts = kind == 0 ? 1 << i : 2 << i;
            for (int k = 0; k < parts; k++) {
                const double low = 0.1 + 0.9 * k / parts, high = 0.1 + 0.9 * (k + 1) / parts;
                books[kind][n++] = (low + high) / 2 * pow(10, i - 6);
                if (kind == 0) books[kind][n] = -books[kind][n - 1], n++;
            }
        }
        books[kind][n++] = 0, books[kind][n++] = 1;
        CHECK_EQ_INT(n, 256);
        qsort(books[kind], 256, sizeof(double), by_size);
        for (int k = 0; k < 256; k++) books[kind][k] = (double)(float)books[kind][k];
    }
}

static int nearest(int kind, float x, float most) {
    const double y = (double)(x / most);
    int best = 0;
    for (int k = 1; k < 256; k++)
        if (fabs(books[kind][k] - y) < fabs(books[kind][best] - y)) best = k;
    if (books[kind][best] == 0 && fabsf(x) >= 1.17549435e-38f) best += x > 0 ? 1 : -1;
    return best;
}

typedef struct {
    uint8_t code[2][MOST];
    float most[2][MOST / BLOCK + 1], plain[2][MOST], weight[MOST];
} loop_state;

/* No compiler may join a product and a sum. */
static float times(float a, float b) {
    volatile float product = a * b;
    return product;
}

static void loop_step(loop_state *s, int k, int step, bool decoupled) {
    static float g[MOST], next[2][MOST];
    const int n = sizes[k];
    const double beta1 = 0.9, beta2 = 0.999, lr = 1e-3, decay = 0.01;
    const double c1 = 1 - pow(beta1, step + 1), c2 = sqrt(1 - pow(beta2, step + 1));
    fill_gradient(g, n, step, k);
    for (int i = 0; i < n; i++) {
        float old[2], x = g[i];
        for (int j = 0; j < 2; j++)
            old[j] = n < 4096 ? s->plain[j][i]
                              : times((float)books[j][s->code[j][i]], s->most[j][i / BLOCK]);
        if (decoupled)
            s->weight[i] = s->weight[i] - times((float)(lr * decay), s->weight[i]);
        else
            x = x + times((float)decay, s->weight[i]);
        const float m = times((float)beta1, old[0]) + times((float)(1 - beta1), x);
        const float v = times((float)beta2, old[1]) + times(times((float)(1 - beta2), x), x);
        const float below = times((float)sqrt((double)v), (float)(1 / c2)) + 1e-8f;
        s->weight[i] = s->weight[i] - times((float)(lr / c1), m) / below;
        next[0][i] = s->plain[0][i] = m, next[1][i] = s->plain[1][i] = v;
    }
    for (int j = 0; j < 2; j++)
        for (int at = 0; at < n; at += BLOCK) {
            float most = 0;
            for (int i = at; i < n && i < at + BLOCK; i++)
                if (fabsf(next[j][i]) > most) most = fabsf(next[j][i]);
            if (most < 1.17549435e-38f) most = 0;
            s->most[j][at / BLOCK] = most;
            for (int i = at; i < n && i < at + BLOCK; i++)
                s->code[j][i] =
                    (uint8_t)(most > 0 ? nearest(j, next[j][i], most) : j == 0 ? 127 : 0);
        }
}

/* ---- what a checkpoint has ---- */

static uint8_t file[1 << 20];

/* Where the elements of a name lie in the file, and how many bytes they are; NULL: it has none. */
static const uint8_t *bytes_of(const char *name, size_t *bytes) {
    char quoted[200], *end;
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | file[i];
    if (header > sizeof file - 9) return NULL;
    const uint8_t kept = file[8 + header];
    file[8 + header] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *found = strstr((const char *)file + 8, quoted);
    const char *at = found ? strstr(found, "\"data_offsets\":[") : NULL;
    const uint8_t *result = NULL;
    if (at) {
        const unsigned long first = strtoul(at + 16, &end, 10);
        *bytes = (size_t)(strtoul(end + 1, NULL, 10) - first);
        result = file + 8 + header + first;
    }
    file[8 + header] = kept;
    return result;
}

/* A GPU's compiler may join a product and a sum: what lies between two codes takes either. */
static void check_codes(const uint8_t *codes, const uint8_t *want, int n) {
    int others = 0, far = 0;
    for (int i = 0; i < n; i++) {
        others += codes[i] != want[i];
        far += abs(codes[i] - want[i]) > 1;
    }
    CHECK_EQ_INT(far, 0);
    CHECK(others <= (mpt_device_count(MPT_DEVICE_CUDA) > 0 ? n / 500 : 0));
}

static void check_moment(const loop_state *s, int k, int j) {
    static const char *const moments[] = {"exp_avg", "exp_avg_sq"};
    char name[200];
    float most[MOST / BLOCK + 1], plain[MOST];
    size_t bytes = 0;
    const int n = sizes[k], blocks = (n + BLOCK - 1) / BLOCK;
    snprintf(name, sizeof name, "mptrain.optimizer.0.net.0.%s.%s", paths[k], moments[j]);
    const uint8_t *data = bytes_of(name, &bytes);
    if (!data) {
        TEST_FAIL_("no %s", name);
    } else if (n < 4096) {
        CHECK_EQ_INT(bytes, 4 * n);
        memcpy(plain, data, 4 * (size_t)n);
        for (int i = 0; i < n; i++) CHECK_CLOSE(plain[i], s->plain[j][i], 1e-6, 1e-37);
    } else {
        CHECK_EQ_INT(bytes, n);
        check_codes(data, s->code[j], n);
        snprintf(name, sizeof name, "mptrain.optimizer.0.net.0.%s.%s.absmax", paths[k],
                 moments[j]);
        data = bytes_of(name, &bytes);
        CHECK(data != NULL && bytes == 4 * (size_t)blocks);
        if (!data) return;
        memcpy(most, data, 4 * (size_t)blocks);
        for (int i = 0; i < blocks; i++) CHECK_CLOSE(most[i], s->most[j][i], 1e-6, 0);
    }
}

TEST(the_codes_are_those_of_a_plain_loop) {
    static loop_state state[SIZES];
    static float weight[MOST];
    const char *path = test_tmp_path("codes.safetensors");
    make_books();
    CHECK(books[0][127] == 0 && books[0][255] == 1 && books[0][0] == (double)-0.99296875f);
    CHECK(books[1][0] == 0 && books[1][255] == 1);
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        mpt_context *context = new_context(2, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(net, decoupled, 8);
        memset(state, 0, sizeof state);
        for (int k = 0; k < SIZES; k++) {
            for (int i = 0; i < sizes[k]; i++) state[k].weight[i] = 0.5f;
        }
        for (int step = 0; step < STEPS; step++) {
            step_by(net, optimizer, NULL, step, 1);
            for (int k = 0; k < SIZES; k++) loop_step(&state[k], k, step, decoupled);
        }
        CHECK_EQ_INT(mpt_checkpoint_save(context, path), MPT_OK);
        check_ok(context);
        file_bytes(path, file, sizeof file);
        for (int k = 0; k < SIZES; k++) {
            for (int j = 0; j < 2; j++) check_moment(&state[k], k, j);
            mpt_read_f32(mpt_parameter(net, paths[k]), weight, sizes[k]);
            for (int i = 0; i < sizes[k]; i++)
                CHECK_CLOSE(weight[i], state[k].weight[i], 1e-6, 1e-7);
        }
        mpt_destroy(context);
    }
}

/* ---- what makes no difference ---- */

static uint64_t hash_of(mpt_module net, mpt_optimizer optimizer) {
    return mpt_module_hash(net) * 31 + mpt_optimizer_hash(optimizer);
}

TEST(threads_and_levels_make_no_difference) {
    static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AUTO, MPT_ISA_AVX2, MPT_ISA_NEON};
    tame = true;
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t first = 0;
        for (int run = 0; run < 6; run++) {
            mpt_context *context =
                new_context(run < 2 ? 1 + run : 2, run < 2 ? MPT_ISA_AUTO : levels[run - 2]);
            if (!context) continue; /* a level that this CPU lacks */
            mpt_module net = new_net(context);
            mpt_optimizer optimizer = new_optimizer(net, kind, 8);
            for (int step = 0; step < 5; step++) step_by(net, optimizer, NULL, step, 1);
            check_ok(context);
            const uint64_t hash = hash_of(net, optimizer);
            if (run == 0) first = hash;
            CHECK(hash == first);
            mpt_destroy(context);
        }
    }
    tame = false;
}

TEST(a_resumed_training_goes_on_to_the_bit) {
    const char *path = test_tmp_path("resumed.safetensors");
    for (int kind = 0; kind < KINDS; kind++) {
        mpt_context *context = new_context(2, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(net, kind, 8);
        for (int step = 0; step < 3; step++) step_by(net, optimizer, NULL, step, 1);
        CHECK_EQ_INT(mpt_checkpoint_save(context, path), MPT_OK);
        const int64_t bytes = mpt_snapshot_bytes(context);
        void *block = malloc((size_t)(bytes > 0 ? bytes : 1));
        CHECK_EQ_INT(mpt_snapshot(context, block, (size_t)bytes), MPT_OK);
        for (int step = 3; step < 6; step++) step_by(net, optimizer, NULL, step, 1);
        const uint64_t hash = hash_of(net, optimizer);
        CHECK_EQ_INT(mpt_restore(context, block, (size_t)bytes), MPT_OK);
        for (int step = 3; step < 6; step++) step_by(net, optimizer, NULL, step, 1);
        CHECK(hash == hash_of(net, optimizer));
        free(block);
        check_ok(context);
        mpt_destroy(context);
        context = new_context(1, MPT_ISA_AUTO);
        net = new_net(context);
        optimizer = new_optimizer(net, kind, 8);
        CHECK_EQ_INT(mpt_checkpoint_load(context, path), MPT_OK);
        for (int step = 3; step < 6; step++) step_by(net, optimizer, NULL, step, 1);
        CHECK(hash == hash_of(net, optimizer));
        check_ok(context);
        mpt_destroy(context);
        /* That of another number of bits is refused as a whole. */
        context = new_context(1, MPT_ISA_AUTO);
        net = new_net(context);
        optimizer = new_optimizer(net, kind, 32);
        const uint64_t before = hash_of(net, optimizer);
        CHECK(mpt_checkpoint_load(context, path) != MPT_OK);
        check_error(context, MPT_ERROR_SHAPE, "U8");
        CHECK(before == hash_of(net, optimizer));
        mpt_destroy(context);
    }
}

TEST(a_replay_is_a_step) {
    uint64_t hash[2];
    for (int replayed = 0; replayed < 2; replayed++) {
        mpt_context *context = new_context(2, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(net, 1, 8);
        for (int i = 0; i < (replayed ? 1 : 4); i++) {
            if (replayed) mpt_record_begin(context);
            mpt_step_begin(context);
            mpt_zero_grad(optimizer);
            mpt_tensor weight = mpt_parameter(net, paths[1]);
            mpt_backward(mpt_sum(mpt_mul(weight, mpt_exp(weight)), MPT_ALL_DIMS, false));
            mpt_step(optimizer);
            mpt_step_end(context);
        }
        if (replayed) {
            mpt_recording recording = mpt_record_end(context);
            for (int i = 0; i < 3; i++) mpt_replay(recording);
        }
        check_ok(context);
        hash[replayed] = hash_of(net, optimizer);
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
}

TEST(a_skipped_step_changes_nothing) {
    NEEDS_PROMPT_DEVICE;
    for (int kind = 0; kind < KINDS; kind++) {
        mpt_context *context = new_context(2, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(net, kind, 8);
        mpt_scaler_config sc = mpt_scaler_config_default();
        sc.init_scale = 1;
        mpt_scaler scaler = mpt_grad_scaler(context, &sc);
        for (int step = 0; step < 4; step++) {
            const bool bad = step == 2;
            const uint64_t before = hash_of(net, optimizer);
            step_by(net, optimizer, &scaler, step, bad ? 1e39 : 1.0);
            CHECK((before == hash_of(net, optimizer)) == bad);
        }
        check_ok(context);
        CHECK_EQ_INT(mpt_applied_steps(optimizer), 3);
        mpt_destroy(context);
    }
}

/* ---- what is not a number ---- */

/* Without a scaler, the weight shows it at once, and its whole block from the next step on: nothing
   of it is lost. */
TEST(what_is_not_finite_stays_seen) {
    static float weight[MOST];
    for (int kind = 0; kind < KINDS; kind++) {
        mpt_context *context = new_context(1, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(net, kind, 8);
        for (int step = 0; step < 2; step++) {
            static float g[MOST];
            for (int i = 0; i < sizes[2]; i++) g[i] = i == 300 && step == 0 ? NAN : 1;
            mpt_step_begin(context);
            mpt_zero_grad(optimizer);
            mpt_tensor parameter = mpt_parameter(net, paths[2]);
            mpt_tensor of = mpt_from(context, MPT_F32, mpt_get_shape(parameter), g);
            mpt_backward(mpt_sum(mpt_mul(parameter, of), MPT_ALL_DIMS, false));
            mpt_step(optimizer);
            mpt_step_end(context);
            mpt_read_f32(mpt_parameter(net, paths[2]), weight, sizes[2]);
            int nan = 0, wrong = 0;
            for (int i = 0; i < sizes[2]; i++) {
                nan += isnan(weight[i]) != 0;
                wrong += isnan(weight[i]) && (step == 0 ? i != 300 : i / BLOCK != 300 / BLOCK);
            }
            CHECK_EQ_INT(wrong, 0);
            CHECK_EQ_INT(nan, step == 0 ? 1 : BLOCK);
        }
        mpt_destroy(context);
    }
}

/* ---- memory, small tensors, groups ---- */

TEST(states_take_a_quarter) {
    int64_t bytes[2];
    for (int k = 0; k < 2; k++) {
        mpt_context *context = new_context(1, MPT_ISA_AUTO);
        mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 784, 128),
            mpt_nn_linear(context, 128, 64), mpt_nn_linear(context, 64, 10), MPT_END);
        new_optimizer(net, 1, k ? 8 : 32);
        check_ok(context);
        bytes[k] = mpt_memory(context).current[MPT_MEMORY_MOMENT];
        mpt_destroy(context);
    }
    CHECK(bytes[0] >= 8 * 109386);
    CHECK((double)bytes[1] <= 0.3 * (double)bytes[0]);
    CHECK((double)bytes[1] >= 0.25 * (double)bytes[0]);
}

static mpt_status plan(mpt_context *context, int64_t batch, void *user) {
    (void)user;
    mpt_module net = new_net(context);
    mpt_optimizer optimizer = new_optimizer(net, 1, 8);
    for (int64_t step = 0; step < batch; step++) step_by(net, optimizer, NULL, (int)step, 1);
    return mpt_failed(context) ? mpt_error_code(context) : MPT_OK;
}

TEST(a_plan_knows_of_them) {
    NEEDS_PROMPT_DEVICE;
    mpt_memory_stats dry, real;
    CHECK_EQ_INT(mpt_plan(NULL, plan, 3, NULL, &dry), MPT_OK);
    mpt_context *context = mpt_create(NULL);
    CHECK_EQ_INT(plan(context, 3, NULL), MPT_OK);
    real = mpt_memory(context);
    for (int k = 0; k < MPT_MEMORY_KINDS; k++) CHECK_EQ_INT(dry.peak[k], real.peak[k]);
    mpt_destroy(context);
}

TEST(small_tensors_keep_fp32) {
    static float weight[2][SIZES][MOST];
    for (int kind = 0; kind < KINDS; kind++) {
        for (int k = 0; k < 2; k++) {
            mpt_context *context = new_context(1, MPT_ISA_AUTO);
            mpt_module net = new_net(context);
            mpt_optimizer optimizer = new_optimizer(net, kind, k ? 8 : 32);
            for (int step = 0; step < STEPS; step++) step_by(net, optimizer, NULL, step, 1);
            for (int i = 0; i < SIZES; i++)
                mpt_read_f32(mpt_parameter(net, paths[i]), weight[k][i], sizes[i]);
            check_ok(context);
            mpt_destroy(context);
        }
        CHECK_EQ_BITS(weight[0][0], weight[1][0], 4 * sizes[0]);
        double far = 0, way = 0; /* others go where fp32 would, by and large */
        for (int i = 0; i < sizes[2]; i++) {
            const double step = (double)weight[0][2][i] - 0.5;
            way += step * step;
            far += pow((double)weight[1][2][i] - (double)weight[0][2][i], 2);
        }
        CHECK(far > 0);
        CHECK(sqrt(far / way) < (kind == 5 ? 0.3 : 0.1));
    }
}

/* Parameters that come later leave the codes of the others where they are. */
TEST(later_parameters_find_room) {
    uint64_t hash[2];
    for (int later = 0; later < 2; later++) {
        mpt_context *context = new_context(1, MPT_ISA_AUTO);
        mpt_module net = new_net(context);
        mpt_optimizer optimizer = new_optimizer(later ? mpt_child(net, "2") : net, 1, 8);
        if (later) {
            step_by(net, optimizer, NULL, 0, 1);
            CHECK_EQ_INT(mpt_optimizer_add(optimizer, mpt_child(net, "0"), NULL, NULL), 1);
            CHECK_EQ_INT(mpt_optimizer_add(optimizer, mpt_child(net, "1"), NULL, NULL), 2);
            CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, NULL, NULL), 3); /* only moves them */
        } else {
            step_by(net, optimizer, NULL, 0, 1);
        }
        for (int step = 1; step < 4; step++) step_by(net, optimizer, NULL, step, 1);
        check_ok(context);
        float weight[MOST];
        mpt_read_f32(mpt_parameter(net, paths[2]), weight, sizes[2]);
        hash[later] = 0;
        for (int i = 0; i < sizes[2]; i++) {
            uint32_t bits;
            memcpy(&bits, &weight[i], 4);
            hash[later] = hash[later] * 1000003 + bits;
        }
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
}

/* bf16 parameters, with masters and without. */
TEST(half_parameters_have_them_too) {
    for (int stochastic = 0; stochastic < 2; stochastic++) {
        uint64_t hash[2];
        for (int threads = 1; threads <= 2; threads++) {
            mpt_context *context = new_context(threads, MPT_ISA_AUTO);
            mpt_module net = new_net(context);
            mpt_half(net, MPT_BF16);
            mpt_adamw_config config = mpt_adamw_config_default();
            config.stochastic_rounding = stochastic != 0;
            config.state_bits = 8;
            mpt_optimizer optimizer = mpt_adamw(net, &config);
            for (int step = 0; step < 4; step++) step_by(net, optimizer, NULL, step, 1);
            check_ok(context);
            hash[threads - 1] = hash_of(net, optimizer);
            mpt_destroy(context);
        }
        CHECK(hash[0] == hash[1]);
    }
}

TEST(other_widths_are_refused) {
    mpt_context *context = new_context(1, MPT_ISA_AUTO);
    mpt_module net = new_net(context);
    CHECK_EQ_INT(mpt_adamw_config_default().state_bits, 32);
    new_optimizer(net, 1, 16);
    check_error(context, MPT_ERROR_ARGUMENT, "state_bits = 16; expected 32 or 8");
    mpt_rmsprop_config config = mpt_rmsprop_config_default();
    config.centered = true, config.state_bits = 8;
    mpt_rmsprop(net, &config);
    check_error(context, MPT_ERROR_ARGUMENT, "centered");
    new_optimizer(net, 1, 8);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(the_codes_are_those_of_a_plain_loop),
              T(threads_and_levels_make_no_difference),
              T(a_resumed_training_goes_on_to_the_bit),
              T(a_replay_is_a_step),
              T(a_skipped_step_changes_nothing),
              T(what_is_not_finite_stays_seen),
              T(states_take_a_quarter),
              T(a_plan_knows_of_them),
              T(small_tensors_keep_fp32),
              T(later_parameters_find_room),
              T(half_parameters_have_them_too),
              T(other_widths_are_refused)};
TEST_MAIN
