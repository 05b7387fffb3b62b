/* fuzz_api.c: bytes become calls of the public API on a pool of handles. Each call is one byte that
   names a row of the table at the end, then the bytes that its arguments are made of. Handles stay
   in the pool after their object is gone, so stale ones turn up everywhere; one context is made
   beside the other for foreign ones; one call of the allocator or for a file may be refused. A
   thread that saves in the background runs where the bytes have it, between two calls or when it is
   waited for. Whatever comes, the library does not crash, keeps its memory below its limit, has a
   message for every error, and gives all memory back at the end. */
#include "fuzz.h"

enum { MAX_SIZE = 512, TENSORS = 16, OBJECTS = 4, ELEMENTS = 4096, MAX_CALLS = 160, MAX_DEPTH = 3 };

static struct {
    mpt_context *context;
    fuzz_input in;
    mpt_tensor tensors[TENSORS];
    mpt_module modules[2 * OBJECTS];
    mpt_optimizer optimizers[OBJECTS];
    mpt_scaler scalers[OBJECTS];
    mpt_schedule schedules[OBJECTS];
    mpt_dataset datasets[OBJECTS];
    mpt_loader loaders[OBJECTS];
    mpt_recording recordings[OBJECTS];
    mpt_op ops[OBJECTS];
    mpt_op_call *call; /* of the user's op that runs */
    size_t block;      /* bytes of the snapshot */
    int depth;
    void (*entry)(void *argument); /* of the thread that has not run yet */
    void *argument;
} f;

/* Bytes in any dtype, class numbers if read as i64; wrapped tensors lie in the second. */
static int64_t source[ELEMENTS], wrapped[ELEMENTS];
static char text[200];

/* ==== Arguments ==== */

static unsigned pick(unsigned n) { return next_byte(&f.in) % n; }
static bool flip(void) { return (next_byte(&f.in) & 1) != 0; }

static double number(void) {
    static const double rare[8] = {0.0, -0.0, 1e-8, 1e300, -1e300, 65504.0, 0.5, 0.999};
    unsigned b = next_byte(&f.in);
    if (b < 8) return rare[b];
    if (b == 255) return -sqrt(-1.0);
    if (b == 254) return 1e300 * 1e300;
    return ((double)b - 100.0) / 16.0;
}

static int64_t count(void) {
    static const int64_t rare[6] = {-1,        INT64_MAX, INT64_MIN, INT64_C(1) << 32,
                                    INT32_MAX, INT64_C(1) << 61};
    unsigned b = next_byte(&f.in);
    return b >= 250 ? rare[b - 250] : (int64_t)(b % 36) - (b >= 200 ? 20 : 0);
}

/* Mostly f32 and the halves. */
static mpt_dtype dtype(void) {
    unsigned b = next_byte(&f.in);
    static const mpt_dtype often[4] = {MPT_F32, MPT_F32, MPT_F16, MPT_BF16};
    return b < 192 ? often[b & 3] : (mpt_dtype)(b % (MPT_DTYPE_COUNT + 2));
}

static int dim(void) {
    unsigned b = next_byte(&f.in);
    return b == 255 ? MPT_ALL_DIMS : b >= 240 ? 77 : (int)(b % 6) - 2;
}

/* Any sizes; those that multiply to more than ELEMENTS are so large that they must be refused. */
static mpt_shape shape(void) {
    static const int64_t rare[4] = {-1, 0, INT64_C(1) << 40, INT64_MAX};
    mpt_shape s = MPT_SCALAR;
    int64_t numel = 1;
    unsigned b = next_byte(&f.in);
    s.rank = b == 255 ? 9 : b == 254 ? -1 : b >= 250 ? 8 : (int)(b % 5);
    for (int i = 0; i < s.rank && i < MPT_MAX_RANK; i++) {
        unsigned size = next_byte(&f.in);
        s.dim[i] = size >= 252 ? rare[size - 252] : size >= 220 ? (int64_t)size - 187
                                                                : (int64_t)(size % 10);
        if (s.dim[i] > 0 && s.dim[i] < 100 && numel * s.dim[i] > ELEMENTS) s.dim[i] = 1;
        if (s.dim[i] > 0 && s.dim[i] < 100) numel *= s.dim[i];
    }
    return s;
}

/* A shape for which `source` and `wrapped` have room. */
static mpt_shape small_shape(void) {
    mpt_shape s = shape();
    for (int i = 0; i < s.rank && i < MPT_MAX_RANK; i++)
        if (s.dim[i] > 100) s.dim[i] = 3;
    int64_t numel = 1;
    for (int i = 0; i < s.rank && i < MPT_MAX_RANK; i++) {
        if (s.dim[i] > 0 && numel * s.dim[i] > ELEMENTS) s.dim[i] = 1;
        if (s.dim[i] > 0) numel *= s.dim[i];
    }
    return s;
}

static mpt_tensor tensor(void) { return f.tensors[pick(TENSORS)]; }
static mpt_module module(void) { return f.modules[pick(2 * OBJECTS)]; }
static mpt_optimizer optimizer(void) { return f.optimizers[pick(OBJECTS)]; }
static mpt_scaler scaler(void) { return f.scalers[pick(OBJECTS)]; }
static mpt_reduction reduction(void) { return (mpt_reduction)pick(4); }

/* Into the pool; what broadcasting has made too large to go on with goes back. */
static void put(mpt_tensor t) {
    if (mpt_valid(t) && mpt_numel(t) > 2 * ELEMENTS) mpt_release(t);
    f.tensors[pick(TENSORS)] = t;
}

static void put_module(mpt_module m) { f.modules[pick(2 * OBJECTS)] = m; }

/* ==== A thread that waits for its turn ==== */

static void run_thread(void) {
    void (*const entry)(void *argument) = f.entry;
    f.entry = NULL;
    if (entry) entry(f.argument);
}

static int thread_create(void *user, void **thread, void (*entry)(void *argument), void *argument) {
    (void)user;
    PROMISE(!f.entry); /* there is one folder, and one that writes there */
    if (pick(8) == 7) return 1;
    f.entry = entry, f.argument = argument;
    *thread = &f;
    return 0;
}

static int thread_join(void *user, void *thread) {
    (void)user, (void)thread;
    run_thread();
    return 0;
}

static int lock_create(void *user, void **made) { return *made = user, 0; }
static void lock_use(void *user, void *lock) { (void)user, (void)lock; }
static void lock_wait(void *user, void *condition, void *lock) {
    (void)user, (void)condition, (void)lock;
    PROMISE(!"nobody is there to wait for");
}

static const mpt_threads late_threads = {
    thread_create, thread_join, lock_create, lock_use, lock_use, lock_use,
    lock_create,   lock_use,    lock_wait,   lock_use, &f};

/* ==== Calls: tensors ==== */

static void call_make(void) {
    mpt_context *c = f.context;
    switch (pick(8)) {
    case 0: put(mpt_zeros(c, dtype(), shape())); break;
    case 1: put(mpt_ones(c, dtype(), shape())); break;
    case 2: put(mpt_full(c, dtype(), shape(), number())); break;
    case 3: put(mpt_rand(c, dtype(), shape())); break;
    case 4: put(mpt_arange(c, dtype(), count())); break;
    case 5: put(mpt_from(c, dtype(), small_shape(), source)); break;
    case 6: put(mpt_wrap(c, dtype(), small_shape(), wrapped)); break;
    default: put(mpt_randn(c, dtype(), shape())); break;
    }
}

static void call_leaf(void) {
    mpt_tensor t = mpt_randn(f.context, dtype(), shape());
    mpt_requires_grad(t, true);
    put(t);
}

static void call_view(void) {
    mpt_tensor x = tensor();
    switch (pick(10)) {
    case 0: put(mpt_reshape(x, shape())); break;
    case 1: put(mpt_permute(x, shape())); break;
    case 2: put(mpt_transpose(x, dim(), dim())); break;
    case 3: put(mpt_slice(x, dim(), count(), count(), count())); break;
    case 4: put(mpt_expand(x, small_shape())); break;
    case 5: put(mpt_flatten(x, dim(), dim())); break;
    case 6: put(mpt_slice(x, dim(), 1, INT64_MAX, 2)); break;
    case 7: put(mpt_contiguous(x)); break;
    case 8: put(mpt_detach(x)); break;
    default: put(mpt_clone(x)); break;
    }
}

static void call_unary(void) {
    static mpt_tensor (*const ops[])(mpt_tensor) = {
        mpt_neg,       mpt_exp,  mpt_log,     mpt_sqrt,  mpt_relu, mpt_gelu,
        mpt_gelu_tanh, mpt_tanh, mpt_sigmoid, mpt_isnan, mpt_isinf};
    put(ops[pick(sizeof ops / sizeof *ops)](tensor()));
}

static void call_binary(void) {
    static mpt_tensor (*const ops[])(mpt_tensor, mpt_tensor) = {
        mpt_add, mpt_sub, mpt_mul, mpt_div, mpt_equal, mpt_matmul, mpt_matmul};
    mpt_tensor a = tensor(), b = tensor();
    put(ops[pick(sizeof ops / sizeof *ops)](a, b));
}

static void call_reduce(void) {
    static mpt_tensor (*const ops[])(mpt_tensor, int, bool) = {mpt_sum, mpt_mean, mpt_max,
                                                               mpt_argmax};
    mpt_tensor x = tensor();
    int along = dim();
    bool keep = flip();
    put(ops[pick(4)](x, along, keep));
}

static void call_attributes(void) {
    mpt_tensor x = tensor(), two[2] = {x, x};
    switch (pick(9)) {
    case 0: put(mpt_add_scalar(x, number())); break;
    case 1: put(mpt_mul_scalar(x, number())); break;
    case 2: put(mpt_softmax(x, dim())); break;
    case 3: put(mpt_log_softmax(x, dim())); break;
    case 4: put(mpt_dropout(x, number())); break;
    case 5: put(mpt_cast(x, dtype())); break;
    case 6: two[1] = tensor(); put(mpt_cat(two, (int)pick(3), dim())); break;
    case 7: two[0] = tensor(), two[1] = tensor();
        put(mpt_linear(x, two[0], two[1], (mpt_activation)pick(7)));
        break;
    default: put(mpt_mse_loss(x, tensor(), reduction())); break;
    }
}

static void call_attention(void) {
    mpt_tensor x = tensor(), y = tensor(), z = tensor();
    mpt_attention_config config = mpt_attention_config_default();
    mpt_nll_config nll = mpt_nll_config_default();
    switch (pick(4)) {
    case 0: put(mpt_embedding(x, y, count())); break;
    case 1: nll.reduction = reduction(); put(mpt_linear_cross_entropy(x, y, z, &nll)); break;
    case 2:
        config.mask = tensor(), config.causal = flip();
        config.dropout = number(), config.scale = number();
        put(mpt_scaled_dot_product_attention(x, y, z, &config));
        break;
    default: put(mpt_scaled_dot_product_attention(x, x, x, NULL)); break;
    }
}

static void call_losses(void) {
    mpt_tensor x = tensor(), y = tensor(), z = tensor(), w = tensor();
    double a = number(), b = number();
    bool on = flip();
    mpt_reduction r = reduction();
    switch (pick(10)) {
    case 0: put(mpt_smooth_l1_loss(x, y, a, r)); break;
    case 1: put(mpt_binary_cross_entropy_with_logits(x, y, z, w, r)); break;
    case 2: put(mpt_binary_cross_entropy(x, y, z, r)); break;
    case 3: put(mpt_kl_div(x, y, on, r)); break;
    case 4: put(mpt_gaussian_nll_loss(x, y, z, on, a, r)); break;
    case 5: put(mpt_margin_ranking_loss(x, y, z, a, r)); break;
    case 6: put(mpt_triplet_margin_loss(x, y, z, a, b, on, r)); break;
    case 7: put(mpt_cosine_similarity(x, y, dim(), a)); break;
    case 8: put(mpt_cosine_embedding_loss(x, y, z, a, r)); break;
    default: put(mpt_soft_margin_loss(x, y, r)); break;
    }
}

static void call_classes(void) {
    mpt_nll_config config = mpt_nll_config_default();
    mpt_tensor x = tensor(), y = tensor();
    config.reduction = reduction();
    config.ignore_index = count();
    if (flip()) config.weight = tensor();
    if (flip()) config.label_smoothing = number();
    put(flip() ? mpt_nll_loss(x, y, flip() ? &config : NULL)
               : mpt_cross_entropy(x, y, flip() ? &config : NULL));
}

static void call_inplace(void) {
    mpt_tensor x = tensor(), y = tensor();
    switch (pick(8)) {
    case 0: mpt_relu_(x); break;
    case 1: mpt_add_(x, y); break;
    case 2: mpt_mul_(x, y); break;
    case 3: mpt_mul_(x, x); break;
    case 4: mpt_copy_(x, y); break;
    case 5: mpt_add_scalar_(x, number()); break;
    case 6: mpt_mul_scalar_(x, number()); break;
    default: mpt_fill_(x, number()); break;
    }
}

static void call_order(void) {
    mpt_tensor x = tensor(), at;
    bool on = flip();
    switch (pick(7)) {
    case 0: put(mpt_sort(x, dim(), on, &at)); put(at); break;
    case 1: put(mpt_topk(x, count(), dim(), on, on ? &at : NULL)); break;
    case 2: put(mpt_argsort(x, dim(), on)); break;
    case 3: put(mpt_lt_scalar(x, number())); break;
    case 4: put(mpt_multi_margin_loss(x, tensor(), 1 + on, number(), tensor(), reduction())); break;
    case 5: put(mpt_poisson_nll_loss(x, tensor(), on, flip(), number(), reduction())); break;
    default:
        put(mpt_interpolate(x, on ? MPT_SCALAR : small_shape(), number(),
                            (mpt_interpolation)pick(2), flip()));
        break;
    }
}

static void call_pick(void) {
    static int64_t counts[64];
    mpt_tensor x = tensor();
    switch (pick(3)) {
    case 0: put(mpt_select(x, dim(), count())); break;
    case 1: put(mpt_multinomial(x, count(), flip())); break;
    default: mpt_confusion(x, tensor(), counts, (int)pick(10) - 1); break;
    }
}

static void call_read(void) {
    static int64_t out[2 * ELEMENTS];
    mpt_tensor x = tensor();
    int64_t numel = mpt_numel(x);
    size_t bytes = numel < 0 ? 8 : (size_t)numel * mpt_dtype_size(mpt_get_dtype(x));
    if (bytes > sizeof out) return;
    switch (pick(7)) {
    case 0: mpt_item(x); break;
    case 1: mpt_read(x, out, bytes - (next_byte(&f.in) == 255)); break;
    case 2: mpt_read_f32(x, (float *)out, numel); break;
    case 3: if (bytes <= sizeof source) mpt_write(x, source, bytes); break;
    case 4: PROMISE(mpt_format(x, NULL, text, pick(sizeof text)) < 1000000); break;
    case 5:
        mpt_allclose(x, tensor(), number(), number());
        PROMISE(mpt_statistics(x).count >= 0);
        break;
    default: mpt_expect_shape(x, shape(), "x"); break;
    }
}

/* ==== Calls: autograd, lifetime, regions ==== */

static void call_backward(void) {
    mpt_tensor x = tensor();
    switch (pick(8)) {
    case 0: mpt_backward(x); break;
    case 1: mpt_backward_from(x, tensor(), flip()); break;
    case 2: put(mpt_grad(x)); break;
    case 3: mpt_requires_grad(x, flip()); break;
    case 4: mpt_clear_grad(x); break;
    case 5: mpt_has_grad(x); break;
    default: mpt_backward(mpt_sum(x, MPT_ALL_DIMS, false)); break;
    }
}

static void call_lifetime(void) {
    mpt_context *c = f.context;
    switch (pick(10)) {
    case 0: case 1: mpt_step_begin(c); break;
    case 2: mpt_step_end(c); break;
    case 3: mpt_scope_begin(c); break;
    case 4: mpt_scope_end(c); break;
    case 5: put(mpt_keep(tensor())); break;
    case 6: mpt_release(tensor()); break;
    case 7: mpt_memory_trim(c); break;
    case 8: mpt_synchronize(c); break;
    default: mpt_clear_error(c); break;
    }
}

static void call_region(void) {
    mpt_context *c = f.context;
    switch (pick(8)) {
    case 0: case 1: mpt_autocast_begin(c, dtype()); break;
    case 2: mpt_autocast_end(c); break;
    case 3: mpt_no_grad_begin(c); break;
    case 4: mpt_no_grad_end(c); break;
    case 5: mpt_inference_begin(c); break;
    case 6: mpt_inference_end(c); break;
    default: mpt_trace_nan(c, flip()); break;
    }
}

#include "fuzz_api_train.h"

static void (*const calls[])(void) = {
    call_make,      call_make,    call_leaf,      call_view,   call_view,      call_unary,
    call_binary,    call_binary,  call_reduce,    call_attributes, call_losses, call_classes,
    call_read,      call_backward, call_backward, call_lifetime, call_lifetime, call_region,
    call_layer,     call_tree,    call_module,    call_module, call_optimizer, call_optimizer,
    call_scaler,    call_scaler,  call_schedule,  call_train,  call_train,     call_data,
    call_inspect,   call_user_op, call_inplace,   call_inplace, call_order,     call_attention,
    call_whole,     call_folder,  call_pick};

/* One call; an error stays only where the byte says so. */
static void next_call(void) {
    unsigned b = next_byte(&f.in);
    if (mpt_failed(f.context) && b < 224) mpt_clear_error(f.context);
    calls[b % (sizeof calls / sizeof *calls)]();
    PROMISE(mpt_failed(f.context) == (mpt_error(f.context)[0] != 0));
    PROMISE(mpt_failed(f.context) == (mpt_error_code(f.context) != MPT_OK));
}

static void run(heap *h) {
    mpt_memory_stats stats;
    for (int i = 0; i < MAX_CALLS && f.in.at < f.in.size; i++) {
        next_call();
        PROMISE(!f.call && f.depth == 0);
        stats = mpt_memory(f.context);
        PROMISE(stats.held == h->live && stats.total_current <= stats.held);
        for (int k = 0; k < MPT_MEMORY_KINDS; k++) PROMISE(stats.current[k] >= 0);
    }
    PROMISE(h->peak <= 16 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const mpt_isa levels[4] = {MPT_ISA_AUTO, MPT_ISA_REF, MPT_ISA_AUTO, MPT_ISA_NULL};
    heap h, h_other;
    disk d;
    if (size < 3 || size > MAX_SIZE) return 0;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < ELEMENTS; i++) source[i] = wrapped[i] = i % 5;
    f.in.data = data, f.in.size = size;
    mpt_config config = fuzz_config(&h), other_config = fuzz_config(&h_other);
    mpt_context *other = NULL;
    disk_use(&d, &config);
    config.io.list = list_files;
    unsigned how = next_byte(&f.in);
    config.thread = late_threads;
    config.isa = levels[how & 3];
    h.fail_at = (int64_t)next_byte(&f.in) * (how & 4 ? 1 : 0);
    if (how & 16) d.fail_at[pick(DISK_CALLBACKS)] = (int)next_byte(&f.in);
    f.context = mpt_create(&config);
    if (f.context) {
        if (how & 8) {
            other = mpt_create(&other_config);
            f.tensors[TENSORS - 1] = mpt_ones(other, MPT_F32, MPT_SHAPE(2, 3));
            f.modules[2 * OBJECTS - 1] = mpt_nn_linear(other, 3, 3);
        }
        run(&h);
        mpt_destroy(f.context);
        mpt_destroy(other);
        PROMISE(!other || h_other.live == 0);
    } else {
        PROMISE(h.fail_at != 0 && mpt_error(NULL)[0] != 0);
    }
    PROMISE(h.live == 0 && d.open_now == 0 && !f.entry);
    disk_free(&d);
    return 0;
}

/* ==== Seeds ==== */

/* Arbitrary programs, the same on every machine; every other one opens with two trainings, some of
   them with a folder whose files are written in the background. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const uint8_t two_steps[8] = {27, 1 | 16, 0, 0, 0, 0, 27, 32};
    static const uint8_t folder_open[7] = {37, 0, 1, 2, 0, 1, 1};
    static const uint8_t saved[12] = {37, 1, 0, 27, 32, 37, 1, 0, 37, 9, 37, 4};
    const char *folder = corpus_folder(*argc, *argv);
    uint32_t state = 1;
    for (int i = 0; folder && i < 64; i++) {
        uint8_t seed[MAX_SIZE];
        char name[16];
        size_t size = 32 + (size_t)i * 4;
        for (size_t k = 0; k < size; k++) {
            state = state * 1664525u + 1013904223u;
            seed[k] = (uint8_t)(state >> 24);
        }
        uint8_t *const first = seed + (i & 16 ? 4 : 2);
        seed[0] = (uint8_t)(i & 31);
        if (i & 16) seed[3] = (uint8_t)(1 + i / 8);
        if (i & 1) memcpy(first, two_steps, sizeof two_steps);
        if (i & 2) memcpy(first + 8, folder_open, sizeof folder_open);
        if (i & 2) memcpy(first + 15, saved, sizeof saved);
        snprintf(name, sizeof name, "%d", i);
        write_seed(folder, name, seed, size);
    }
    return 0;
}
