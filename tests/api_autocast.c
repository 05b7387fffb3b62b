/* api_autocast.c: the dtype that every op computes in and gives in fp16, bf16, nested and disabled
   regions; overrides by module; mixed dtypes; pure half and fp32 masters; forms of weights. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

static mpt_context *c;
static mpt_tensor none;

static void begin(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    memset(&none, 0, sizeof none);
    c = mpt_create(&config);
}

static void end(void) {
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

static mpt_dtype dtype_of(mpt_tensor x) { return mpt_get_dtype(x); }

/* ==== Every op in every region ==== */

static mpt_tensor labels(void) {
    int64_t values[4] = {0, 1, 2, 3};
    return mpt_from(c, MPT_I64, MPT_SHAPE(4), values);
}

/* Of a step of four sequences by a cell of so many gates. */
static mpt_tensor recurrent(mpt_tensor x, int gates) {
    mpt_cell_config how = mpt_cell_config_default();
    mpt_tensor step = mpt_reshape(x, MPT_SHAPE(1, 4, 4));
    how.weight_ih = mpt_slice(x, 0, 0, gates, 1);
    how.weight_hh = mpt_slice(how.weight_ih, 1, 0, 1, 1);
    return gates == 4   ? mpt_lstm(step, &how, NULL, NULL)
           : gates == 3 ? mpt_gru(step, &how, NULL)
                        : mpt_rnn(step, &how, NULL);
}

static mpt_tensor call(const char *op, mpt_tensor x) {
    mpt_tensor two[2];
    two[0] = two[1] = x;
#define OP(name, expression) \
    if (strcmp(op, name) == 0) return expression
    OP("add", mpt_add(x, x));
    OP("sub", mpt_sub(x, x));
    OP("mul", mpt_mul(x, x));
    OP("div", mpt_div(x, x));
    OP("add_scalar", mpt_add_scalar(x, 1));
    OP("mul_scalar", mpt_mul_scalar(x, 2));
    OP("neg", mpt_neg(x));
    OP("exp", mpt_exp(x));
    OP("log", mpt_log(x));
    OP("sqrt", mpt_sqrt(x));
    OP("relu", mpt_relu(x));
    OP("gelu", mpt_gelu(x));
    OP("gelu_tanh", mpt_gelu_tanh(x));
    OP("tanh", mpt_tanh(x));
    OP("sigmoid", mpt_sigmoid(x));
    OP("min", mpt_min(x, 1, false));
    OP("prod", mpt_prod(x, 1, false));
    OP("var", mpt_var(x, 1, false, 1));
    OP("std", mpt_std(x, 1, false, 1));
    OP("norm", mpt_norm(x, 2, 1, false));
    OP("logsumexp", mpt_logsumexp(x, 1, false));
    OP("cumsum", mpt_cumsum(x, 1));
    OP("gather", mpt_gather(x, 0, mpt_zeros(c, MPT_I64, MPT_SHAPE(2, 4))));
    OP("index_select", mpt_index_select(x, 0, mpt_zeros(c, MPT_I64, MPT_SHAPE(2))));
    OP("scatter_add", mpt_scatter_add(x, 0, mpt_zeros(c, MPT_I64, MPT_SHAPE(4, 4)), x));
    OP("flip", mpt_flip(x, 0));
    OP("tril", mpt_tril(x, 0));
    OP("triu", mpt_triu(x, 0));
    OP("pad", mpt_pad(x, MPT_SHAPE(1, 1), 0));
    OP("log1p", mpt_log1p(x));
    OP("rsqrt", mpt_rsqrt(x));
    OP("pow", mpt_pow(x, x));
    OP("pow_scalar", mpt_pow_scalar(x, 2));
    OP("abs", mpt_abs(x));
    OP("sign", mpt_sign(x));
    OP("sin", mpt_sin(x));
    OP("cos", mpt_cos(x));
    OP("clamp", mpt_clamp(x, 0, 1));
    OP("minimum", mpt_minimum(x, x));
    OP("maximum", mpt_maximum(x, x));
    OP("where", mpt_where(mpt_lt(x, x), x, x));
    OP("leaky_relu", mpt_leaky_relu(x, 0.1));
    OP("elu", mpt_elu(x, 1));
    OP("silu", mpt_silu(x));
    OP("softplus", mpt_softplus(x, 1, 20));
    OP("hardtanh", mpt_hardtanh(x, -1, 1));
    OP("matmul", mpt_matmul(x, x));
    OP("linear", mpt_linear(x, x, none, MPT_ACTIVATION_RELU));
    mpt_tensor image = mpt_reshape(x, MPT_SHAPE(1, 4, 1, 4));
    mpt_tensor line = mpt_reshape(x, MPT_SHAPE(1, 4, 4));
    OP("conv2d", mpt_conv2d(image, mpt_permute(image, MPT_SHAPE(2, 1, 0, 3)), none, NULL));
    OP("conv1d", mpt_conv1d(line, line, none, NULL));
    OP("conv_transpose2d", mpt_conv_transpose2d(image, mpt_transpose(image, 0, 1), none, NULL));
    OP("sum", mpt_sum(x, 0, false));
    OP("mean", mpt_mean(x, MPT_ALL_DIMS, false));
    OP("max", mpt_max(x, 1, false));
    OP("softmax", mpt_softmax(x, -1));
    OP("log_softmax", mpt_log_softmax(x, -1));
    OP("dropout", mpt_dropout(x, 0.5));
    OP("reshape", mpt_reshape(x, MPT_SHAPE(16)));
    OP("permute", mpt_transpose(x, 0, 1));
    OP("slice", mpt_slice(x, 0, 0, 2, 1));
    OP("expand", mpt_expand(x, MPT_SHAPE(2, 4, 4)));
    OP("clone", mpt_clone(x));
    OP("cat", mpt_cat(two, 2, 0));
    OP("nll_loss", mpt_nll_loss(x, labels(), NULL));
    OP("cross_entropy", mpt_cross_entropy(x, labels(), NULL));
    OP("mse_loss", mpt_mse_loss(x, x, MPT_MEAN));
    OP("l1_loss", mpt_l1_loss(x, x, MPT_MEAN));
    OP("smooth_l1_loss", mpt_smooth_l1_loss(x, x, 1, MPT_MEAN));
    OP("huber_loss", mpt_huber_loss(x, x, 1, MPT_MEAN));
    OP("binary_cross_entropy_with_logits",
       mpt_binary_cross_entropy_with_logits(x, x, none, none, MPT_MEAN));
    OP("binary_cross_entropy", mpt_binary_cross_entropy(mpt_sigmoid(x), x, none, MPT_MEAN));
    OP("kl_div", mpt_kl_div(x, x, true, MPT_BATCH_MEAN));
    OP("gaussian_nll_loss", mpt_gaussian_nll_loss(x, x, x, true, 1e-6, MPT_MEAN));
    OP("soft_margin_loss", mpt_soft_margin_loss(x, x, MPT_MEAN));
    OP("hinge_embedding_loss", mpt_hinge_embedding_loss(x, x, 1, MPT_MEAN));
    OP("margin_ranking_loss", mpt_margin_ranking_loss(x, x, x, 1, MPT_MEAN));
    OP("triplet_margin_loss", mpt_triplet_margin_loss(x, x, x, 1, 1e-6, true, MPT_MEAN));
    OP("cosine_similarity", mpt_cosine_similarity(x, x, 1, 1e-8));
    OP("cosine_embedding_loss", mpt_cosine_embedding_loss(x, x, mpt_sum(x, 1, false), 0, MPT_MEAN));
    OP("soft_targets", mpt_cross_entropy(x, x, NULL));
    OP("poisson_nll_loss", mpt_poisson_nll_loss(x, x, true, false, 1e-8, MPT_MEAN));
    OP("multi_margin_loss", mpt_multi_margin_loss(x, labels(), 1, 1, none, MPT_MEAN));
    OP("interpolate",
       mpt_interpolate(mpt_reshape(x, MPT_SHAPE(1, 1, 4, 4)), MPT_SCALAR, 2, MPT_BILINEAR, false));
    OP("embedding", mpt_embedding(labels(), x, -1));
    OP("scaled_dot_product_attention", mpt_scaled_dot_product_attention(x, x, x, NULL));
    OP("layer_norm", mpt_layer_norm(x, 1, none, none, 1e-5));
    OP("rms_norm", mpt_rms_norm(x, 1, none, 1e-5));
    OP("batch_norm", mpt_batch_norm(x, none, none, none, none, 1e-5));
    OP("group_norm", mpt_group_norm(x, 2, none, none, 1e-5));
    OP("max_pool2d", mpt_max_pool2d(mpt_reshape(x, MPT_SHAPE(1, 1, 4, 4)), NULL));
    OP("avg_pool2d", mpt_avg_pool2d(mpt_reshape(x, MPT_SHAPE(1, 1, 4, 4)), NULL));
    OP("linear_cross_entropy", mpt_linear_cross_entropy(x, x, labels(), NULL));
    OP("rope", mpt_rope(x, NULL));
    OP("hash_grid",
       mpt_hash_grid(mpt_reshape(x, MPT_SHAPE(8, 2)), mpt_reshape(x, MPT_SHAPE(2, 4, 2)), 1, 8));
    OP("rnn", recurrent(x, 1));
    OP("gru", recurrent(x, 3));
    OP("lstm", recurrent(x, 4));
#undef OP
    return none;
}

/* The design's table: matmul-like ops low; losses, softmax, exp, log, sums fp32; the rest as it
   comes. A row of the library's table that is not here fails. */
typedef struct row {
    const char *op, *policy;
    char rule; /* i: input, l: low, 3: fp32 in a region, L: fp32 always, -: not a float result */
} row;
static const row rows[] = {{"add", "input", 'i'},
                           {"sub", "input", 'i'},
                           {"mul", "input", 'i'},
                           {"div", "input", 'i'},
                           {"add_scalar", "input", 'i'},
                           {"mul_scalar", "input", 'i'},
                           {"neg", "input", 'i'},
                           {"exp", "f32", '3'},
                           {"log", "f32", '3'},
                           {"sqrt", "input", 'i'},
                           {"relu", "input", 'i'},
                           {"gelu", "input", 'i'},
                           {"gelu_tanh", "input", 'i'},
                           {"tanh", "input", 'i'},
                           {"sigmoid", "input", 'i'},
                           {"isnan", "input", '-'},
                           {"isinf", "input", '-'},
                           {"equal", "any", '-'},
                           {"lt", "any", '-'},
                           {"le", "any", '-'},
                           {"gt", "any", '-'},
                           {"ge", "any", '-'},
                           {"ne", "any", '-'},
                           {"logical_and", "any", '-'},
                           {"logical_or", "any", '-'},
                           {"logical_not", "any", '-'},
                           {"log1p", "f32", '3'},
                           {"rsqrt", "f32", '3'},
                           {"pow", "f32", '3'},
                           {"pow_scalar", "f32", '3'},
                           {"abs", "input", 'i'},
                           {"sign", "input", 'i'},
                           {"sin", "input", 'i'},
                           {"cos", "input", 'i'},
                           {"clamp", "input", 'i'},
                           {"minimum", "input", 'i'},
                           {"maximum", "input", 'i'},
                           {"where", "any", 'i'},
                           {"leaky_relu", "input", 'i'},
                           {"elu", "input", 'i'},
                           {"silu", "input", 'i'},
                           {"softplus", "f32", '3'},
                           {"hardtanh", "input", 'i'},
                           {"scale_loss", "f32 always", '-'},
                           {"matmul", "f16 / bf16", 'l'},
                           {"linear", "f16 / bf16", 'l'},
                           {"conv2d", "f16 / bf16", 'l'},
                           {"conv1d", "f16 / bf16", 'l'},
                           {"conv_transpose2d", "f16 / bf16", 'l'},
                           {"sum", "f32", '3'},
                           {"mean", "f32", '3'},
                           {"max", "input", 'i'},
                           {"argmax", "input", '-'},
                           {"min", "input", 'i'},
                           {"argmin", "input", '-'},
                           {"prod", "f32", '3'},
                           {"var", "input", 'i'},
                           {"std", "input", 'i'},
                           {"norm", "f32", '3'},
                           {"logsumexp", "f32", '3'},
                           {"cumsum", "f32", '3'},
                           {"softmax", "f32", '3'},
                           {"log_softmax", "f32", '3'},
                           {"dropout", "input", 'i'},
                           {"reshape", "any", 'i'},
                           {"permute", "any", 'i'},
                           {"slice", "any", 'i'},
                           {"expand", "any", 'i'},
                           {"clone", "any", 'i'},
                           {"cast", "any", '-'},
                           {"cat", "input", 'i'},
                           {"gather", "any", 'i'},
                           {"index_select", "any", 'i'},
                           {"scatter_add", "any", 'i'},
                           {"one_hot", "any", '-'},
                           {"flip", "input", 'i'},
                           {"tril", "input", 'i'},
                           {"triu", "input", 'i'},
                           {"pad", "input", 'i'},
                           {"nll_loss", "f32 always", 'L'},
                           {"cross_entropy", "f32 always", 'L'},
                           {"mse_loss", "f32 always", 'L'},
                           {"l1_loss", "f32 always", 'L'},
                           {"smooth_l1_loss", "f32 always", 'L'},
                           {"huber_loss", "f32 always", 'L'},
                           {"binary_cross_entropy_with_logits", "f32 always", 'L'},
                           {"binary_cross_entropy", "f32 always", 'L'},
                           {"kl_div", "f32 always", 'L'},
                           {"gaussian_nll_loss", "f32 always", 'L'},
                           {"soft_margin_loss", "f32 always", 'L'},
                           {"hinge_embedding_loss", "f32 always", 'L'},
                           {"margin_ranking_loss", "f32 always", 'L'},
                           {"triplet_margin_loss", "f32 always", 'L'},
                           {"cosine_similarity", "f32 always", 'L'},
                           {"cosine_embedding_loss", "f32 always", 'L'},
                           {"soft_targets", "f32 always", 'L'},
                           {"poisson_nll_loss", "f32 always", 'L'},
                           {"multi_margin_loss", "f32 always", 'L'},
                           {"interpolate", "input", 'i'},
                           {"argsort", "input", '-'},
                           {"embedding", "any", 'i'},
                           {"scaled_dot_product_attention", "f16 / bf16", 'l'},
                           {"layer_norm", "any", 'i'},
                           {"rms_norm", "any", 'i'},
                           {"batch_norm", "any", 'i'},
                           {"group_norm", "any", 'i'},
                           {"max_pool2d", "input", 'i'},
                           {"avg_pool2d", "input", 'i'},
                           {"rope", "any", 'i'},
                           {"hash_grid", "any", 'i'},
                           {"rnn", "f16 / bf16", 'l'},
                           {"gru", "f16 / bf16", 'l'},
                           {"lstm", "f16 / bf16", 'l'},
                           {"linear_cross_entropy", "f32 always", 'L'},
                           {"user", "any", '-'}};
enum { ROWS = sizeof rows / sizeof rows[0] };

static mpt_dtype expected(char rule, mpt_dtype input, mpt_dtype region) {
    bool on = region != MPT_F32;
    if (rule == 'L' || (rule == '3' && on)) return MPT_F32;
    return rule == 'l' && on ? region : input;
}

TEST(every_op_in_every_region) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    begin();
    mpt_tensor x = mpt_add_scalar(mpt_rand(c, MPT_F32, MPT_SHAPE(4, 4)), 0.5);
    for (int r = 0; r < ROWS; r++) {
        if (rows[r].rule == '-') continue;
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 3; j++) {
                mpt_scope_begin(c);
                mpt_tensor in = mpt_cast(x, dtypes[i]);
                mpt_autocast_begin(c, dtypes[j]);
                mpt_dtype got = dtype_of(call(rows[r].op, in));
                mpt_autocast_end(c);
                if (got != expected(rows[r].rule, dtypes[i], dtypes[j])) {
                    printf("\n  %s of %s in %s gives %s", rows[r].op, mpt_dtype_name(dtypes[i]),
                           mpt_dtype_name(dtypes[j]), mpt_dtype_name(got));
                    test_failures++;
                }
                CHECK_EQ_INT(dtype_of(call(rows[r].op, in)),
                             expected(rows[r].rule, dtypes[i], MPT_F32));
                mpt_scope_end(c);
            }
        }
    }
    end();
}

TEST(the_policy_as_text) {
    char text[4096], line[128];
    size_t need = mpt_autocast_policy(text, sizeof text);
    int lines = 0;
    CHECK(need == strlen(text) && need < sizeof text);
    CHECK_CONTAINS(text, "version 1\n");
    for (int r = 0; r < ROWS; r++) {
        snprintf(line, sizeof line, "\n%s: %s", rows[r].op, rows[r].policy);
        CHECK_CONTAINS(text, line);
    }
    for (size_t i = 0; i < need; i++) lines += text[i] == '\n';
    CHECK_EQ_INT(lines, ROWS + 1);
}

TEST(regions_nest) {
    begin();
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 4));
    mpt_autocast_begin(c, MPT_F16);
    CHECK_EQ_INT(dtype_of(mpt_matmul(x, x)), MPT_F16);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_tensor b = mpt_matmul(x, x);
    CHECK_EQ_INT(dtype_of(b), MPT_BF16);
    mpt_autocast_begin(c, MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_matmul(x, x)), MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_matmul(b, b)), MPT_BF16);
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(mpt_matmul(x, x)), MPT_BF16);
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(mpt_matmul(x, b)), MPT_F16); /* mixed inputs, inside */
    CHECK_EQ_INT(dtype_of(mpt_add(x, b)), MPT_F32);
    mpt_tensor pair[2];
    pair[0] = x, pair[1] = b;
    CHECK_EQ_INT(dtype_of(mpt_cat(pair, 2, 0)), MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_add(mpt_matmul(x, x), b)), MPT_F32); /* f16 and bf16 */
    mpt_autocast_end(c);
    mpt_no_grad_begin(c); /* casting does not depend on history */
    mpt_autocast_begin(c, MPT_F16);
    CHECK_EQ_INT(dtype_of(mpt_matmul(x, x)), MPT_F16);
    mpt_autocast_end(c);
    mpt_no_grad_end(c);
    end();
}

/* Inputs are really rounded, sums really are not. */
TEST(values_are_rounded_where_the_table_says) {
    begin();
    float fine = 1.0f + 1.0f / 4096.0f;
    mpt_tensor x = mpt_full(c, MPT_F32, MPT_SHAPE(1, 1), (double)fine);
    mpt_tensor many = mpt_full(c, MPT_F16, MPT_SHAPE(4096), 1.0);
    mpt_autocast_begin(c, MPT_F16);
    CHECK(mpt_item(mpt_matmul(x, x)) == 1.0);
    CHECK(mpt_item(mpt_mul(x, x)) > 1.0);
    CHECK(mpt_item(mpt_sum(many, 0, false)) == 4096.0); /* fp16 would stop at 2048 */
    CHECK(mpt_item(mpt_exp(mpt_full(c, MPT_F16, MPT_SHAPE(1), 12))) > 65504); /* no overflow */
    mpt_tensor big = mpt_full(c, MPT_F32, MPT_SHAPE(1, 1), 70000);
    CHECK(mpt_item(mpt_isinf(mpt_matmul(big, x))) == 1);
    mpt_autocast_end(c);
    CHECK(mpt_item(mpt_matmul(x, x)) > 1.0);
    CHECK(mpt_item(mpt_matmul(big, x)) > 70000);
    end();
}

TEST(mixed_dtypes_outside_name_both) {
    begin();
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 4, 4), MPT_END);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 4)), h = mpt_cast(x, MPT_F16), w;
    mpt_add(x, h);
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_DTYPE);
    CHECK_CONTAINS(mpt_error(c), "argument 1 is float32, argument 2 is float16");
    CHECK_CONTAINS(mpt_error(c), "mpt_autocast_begin");
    mpt_clear_error(c);
    mpt_forward(net, h);
    CHECK_CONTAINS(mpt_error(c),
                   "argument 1 is float16, argument 2 (parameter 0.weight) is float32");
    mpt_clear_error(c);
    w = mpt_parameter(net, "0.weight");
    mpt_matmul(h, mpt_exp(w));
    CHECK_CONTAINS(mpt_error(c), "argument 1 is float16, argument 2 (result of exp) is float32");
    mpt_clear_error(c);
    mpt_tensor d = mpt_cast(x, MPT_F64);
    mpt_relu(d);
    CHECK_CONTAINS(mpt_error(c), "argument 1 is float64, which this op does not compute in");
    mpt_clear_error(c);
    end();
}

/* torch.lt and its kin and torch.scatter_add take the wider dtype. */
TEST(mixed_dtypes_meet_in_a_region) {
    begin();
    const double step = 1.0 / 4096; /* lost in bf16 beside 1 */
    mpt_tensor wide = mpt_full(c, MPT_F32, MPT_SHAPE(2, 3), 1 + step);
    mpt_tensor low = mpt_ones(c, MPT_BF16, MPT_SHAPE(3));
    mpt_tensor whole = mpt_ones(c, MPT_I64, MPT_SHAPE(3));
    mpt_tensor index = mpt_zeros(c, MPT_I64, MPT_SHAPE(2, 3));
    mpt_tensor base = mpt_ones(c, MPT_BF16, MPT_SHAPE(2, 3));
    mpt_requires_grad(wide, true);
    mpt_requires_grad(base, true);
    mpt_lt(low, wide);
    CHECK_CONTAINS(mpt_error(c), "argument 1 is bfloat16, argument 2 is float32; open "
                                 "mpt_autocast_begin around the call or mpt_cast one of them");
    mpt_clear_error(c);
    mpt_lt(wide, whole); /* which a region would not bring together */
    CHECK_CONTAINS(mpt_error(c), "argument 1 is float32, argument 2 is int64; mpt_cast one of");
    mpt_clear_error(c);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_tensor less[] = {mpt_lt(low, wide), mpt_ge(wide, low), mpt_ne(low, wide),
                         mpt_equal(low, wide)};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(dtype_of(less[i]), MPT_BOOL);
        CHECK_NEAR(mpt_item(mpt_sum(mpt_cast(less[i], MPT_F32), MPT_ALL_DIMS, false)),
                   i < 3 ? 6 : 0, 0);
    }
    mpt_tensor sum = mpt_scatter_add(base, 0, index, wide);
    CHECK_EQ_INT(dtype_of(sum), MPT_F32);
    CHECK_NEAR(mpt_item(mpt_slice(mpt_slice(sum, 0, 0, 1, 1), 1, 0, 1, 1)), 3 + 2 * step, 0);
    CHECK_NEAR(mpt_item(mpt_slice(mpt_slice(sum, 0, 1, 2, 1), 1, 2, 3, 1)), 1, 0);
    mpt_backward(mpt_sum(mpt_mul_scalar(sum, 1 + step), MPT_ALL_DIMS, false));
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(mpt_grad(base)), MPT_BF16);
    CHECK_EQ_INT(dtype_of(mpt_grad(wide)), MPT_F32);
    CHECK_NEAR(mpt_item(mpt_mean(mpt_grad(wide), MPT_ALL_DIMS, false)), 1 + step, 0);
    CHECK_NEAR(mpt_item(mpt_mean(mpt_cast(mpt_grad(base), MPT_F32), MPT_ALL_DIMS, false)), 1, 0);
    CHECK_EQ_INT(mpt_error_code(c), MPT_OK);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_lt(low, whole);
    CHECK_CONTAINS(mpt_error(c),
                   "argument 1 is bfloat16, argument 2 is int64; mpt_cast one of them");
    mpt_clear_error(c);
    end();
}

/* Where mpt_autocast_begin_narrow is in force, and no longer than that. */
TEST(mixed_dtypes_meet_in_half_in_a_narrow_region) {
    begin();
    const double step = 1.0 / 4096; /* lost in bf16 beside 1 */
    mpt_tensor wide = mpt_full(c, MPT_F32, MPT_SHAPE(2, 4), 1 + step);
    mpt_tensor low = mpt_ones(c, MPT_BF16, MPT_SHAPE(2, 4));
    mpt_tensor both[2], sum;
    both[0] = wide, both[1] = low;
    mpt_requires_grad(wide, true);
    mpt_requires_grad(low, true);
    CHECK_EQ_INT(mpt_autocast_begin_narrow(c, MPT_BF16), MPT_OK);
    mpt_tensor met[] = {mpt_add(wide, low), mpt_mul(low, wide), mpt_cat(both, 2, 0),
                        mpt_add_layer_norm(wide, low, 1, none, none, 1e-5, &sum)};
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(dtype_of(met[i]), MPT_BF16);
    CHECK_EQ_INT(dtype_of(sum), MPT_BF16);
    CHECK_EQ_INT(dtype_of(mpt_add(wide, wide)), MPT_F32); /* these do not differ */
    CHECK_EQ_INT(dtype_of(mpt_softmax(low, -1)), MPT_F32);
    CHECK_NEAR(mpt_item(mpt_slice(mpt_slice(met[0], 0, 0, 1, 1), 1, 0, 1, 1)), 2, 0);
    mpt_autocast_begin(c, MPT_BF16);
    CHECK_EQ_INT(dtype_of(mpt_add(wide, low)), MPT_F32);
    mpt_autocast_end(c);
    mpt_autocast_begin_narrow(c, MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_add(wide, low)), MPT_F32);
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(mpt_add(wide, low)), MPT_BF16);
    mpt_backward(mpt_sum(mpt_mul_scalar(met[0], 1 + 1.0 / 128), MPT_ALL_DIMS, false));
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(mpt_grad(wide)), MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_grad(low)), MPT_BF16);
    CHECK_NEAR(mpt_item(mpt_mean(mpt_grad(wide), MPT_ALL_DIMS, false)), 1 + 1.0 / 128, 0);
    CHECK_EQ_INT(mpt_error_code(c), MPT_OK);
    end();
}

/* ==== Backward ==== */

TEST(gradients_keep_their_dtypes) {
    begin();
    mpt_module net = make_net(c);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_tensor x = mpt_cast(mpt_ones(c, MPT_F32, MPT_SHAPE(4, FEATURES)), MPT_F16);
    mpt_requires_grad(x, true);
    mpt_autocast_begin(c, MPT_F16);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(net, x), labels(), NULL);
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(loss), MPT_F32);
    mpt_backward(loss);
    CHECK_EQ_INT(dtype_of(mpt_grad(mpt_parameter(net, "0.weight"))), MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_grad(mpt_parameter(net, "3.bias"))), MPT_F32);
    CHECK_EQ_INT(dtype_of(mpt_grad(x)), MPT_F16);
    mpt_zero_grad(opt);
    end();
}

/* ==== Modules ==== */

static mpt_dtype seen[2];
static mpt_status look(mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out,
                       int n_out) {
    (void)self, (void)n_in, (void)n_out;
    out[0] = mpt_matmul(in[0], in[0]);
    seen[user ? 1 : 0] = mpt_get_dtype(out[0]);
    return MPT_OK;
}

TEST(overrides_by_module) {
    begin();
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "look", cls.forward = look, cls.n_inputs = cls.n_outputs = 1;
    mpt_module plain = mpt_module_create(c, &cls, NULL), kept = mpt_module_create(c, &cls, &cls);
    mpt_module wrapped = mpt_sequential(c, kept, MPT_END);
    mpt_module net = mpt_sequential(c, plain, wrapped, mpt_nn_linear(c, 4, 4), MPT_END);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 4)), y;
    mpt_set_dtype_policy(wrapped, MPT_F32); /* with its children */
    mpt_autocast_begin(c, MPT_F16);
    y = mpt_forward(net, x);
    CHECK_EQ_INT(seen[0], MPT_F16);
    CHECK_EQ_INT(seen[1], MPT_F16);     /* casting is off: its input is half, and stays so */
    CHECK_EQ_INT(dtype_of(y), MPT_F16); /* the region goes on behind it */
    mpt_forward(wrapped, x);
    CHECK_EQ_INT(seen[1], MPT_F32);
    mpt_set_dtype_policy(wrapped, MPT_BF16);
    mpt_forward(wrapped, x);
    CHECK_EQ_INT(seen[1], MPT_BF16);
    mpt_set_dtype_policy(wrapped, MPT_DTYPE_NONE);
    mpt_forward(wrapped, x);
    CHECK_EQ_INT(seen[1], MPT_F16);
    mpt_autocast_end(c);
    mpt_set_dtype_policy(wrapped, MPT_BF16);
    mpt_forward(wrapped, x); /* outside a region there is nothing to override */
    CHECK_EQ_INT(seen[1], MPT_F32);
    mpt_module lone = mpt_sequential(c, mpt_nn_linear(c, 4, 4), mpt_nn_relu(c), MPT_END);
    mpt_set_dtype_policy(mpt_child(lone, "0"), MPT_F32);
    mpt_autocast_begin(c, MPT_F16);
    CHECK_EQ_INT(dtype_of(mpt_forward(lone, x)), MPT_F32);
    mpt_autocast_end(c);
    end();
}

/* What mpt_anomaly_text and the scaler advise: a layer behind others takes what they made in half,
   computes in fp32, and gives fp32. */
TEST(a_layer_in_the_middle_is_kept_in_fp32) {
    static const mpt_dtype dtypes[] = {MPT_F16, MPT_BF16};
    for (int i = 0; i < 4; i++) {
        begin();
        mpt_module kept = i < 2 ? mpt_nn_linear(c, 4, 4) : mpt_nn_conv2d(c, 4, 4, 3, 3, NULL);
        mpt_module first = i < 2 ? mpt_nn_linear(c, 4, 4) : mpt_nn_conv2d(c, 3, 4, 3, 3, NULL);
        mpt_module net = mpt_sequential(c, first, kept, mpt_nn_relu(c), MPT_END);
        mpt_tensor x = i < 2 ? mpt_randn(c, MPT_F32, MPT_SHAPE(2, 4))
                             : mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3, 6, 6));
        mpt_set_dtype_policy(kept, MPT_F32);
        mpt_autocast_begin(c, dtypes[i % 2]);
        mpt_tensor half = mpt_forward(first, x), y = mpt_forward(net, x);
        CHECK_EQ_INT(dtype_of(half), dtypes[i % 2]);
        CHECK_EQ_INT(dtype_of(y), MPT_F32);
        mpt_autocast_end(c);
        mpt_tensor want = mpt_relu(mpt_forward(kept, mpt_cast(half, MPT_F32)));
        CHECK(mpt_allclose(y, want, 0, 0));
        mpt_backward(mpt_mean(y, MPT_ALL_DIMS, false));
        mpt_tensor gradient = mpt_clone(mpt_grad(mpt_parameter(net, "0.weight")));
        CHECK_EQ_INT(dtype_of(gradient), MPT_F32);
        CHECK_EQ_INT(dtype_of(mpt_grad(mpt_parameter(net, "1.weight"))), MPT_F32);
        end();
    }
}

/* ==== Forms of weights ==== */

static mpt_counters counted(void) { return mpt_get_counters(c); }

TEST(forms_are_made_once_per_step) {
    begin();
    mpt_module net =
        mpt_sequential(c, mpt_nn_linear(c, 8, 8), mpt_nn_relu(c), mpt_nn_linear(c, 8, 8), MPT_END);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.5;
    mpt_optimizer opt = mpt_sgd(net, &config);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 8)), first, second;
    float before[8], after[8];
    for (int step = 0; step < 3; step++) {
        mpt_counters start = counted();
        mpt_autocast_begin(c, MPT_F16);
        first = mpt_forward(net, x);
        mpt_counters one = counted();
        CHECK_EQ_INT(one.form_misses - start.form_misses, 1); /* one cast for the whole tree */
        CHECK(one.form_hits > start.form_hits);
        second = mpt_forward(net, x);
        mpt_autocast_end(c);
        CHECK_EQ_INT(counted().form_misses, one.form_misses);
        CHECK(mpt_allclose(first, second, 0, 0));
        mpt_read_f32(first, before, 8);
        mpt_zero_grad(opt);
        mpt_backward(mpt_sum(mpt_add(first, second), MPT_ALL_DIMS, false));
        CHECK_EQ_INT(counted().form_misses, one.form_misses); /* backward uses the same */
        mpt_step(opt);
        mpt_autocast_begin(c, MPT_F16);
        mpt_no_grad_begin(c);
        mpt_read_f32(mpt_forward(net, x), after, 8); /* sees the new weights */
        mpt_no_grad_end(c);
        mpt_autocast_end(c);
        CHECK(memcmp(before, after, sizeof before) != 0);
        float zero[64] = {0}; /* and values written by hand */
        mpt_write(mpt_parameter(net, "2.weight"), zero, sizeof zero);
        mpt_autocast_begin(c, MPT_F16);
        mpt_read_f32(mpt_forward(net, x), after, 8);
        mpt_autocast_end(c);
        float bias[8];
        mpt_read_f32(mpt_cast(mpt_parameter(net, "2.bias"), MPT_F16), bias, 8);
        CHECK_EQ_BITS(after, bias, sizeof bias);
        mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_NORMAL, 0, 0.5));
    }
    CHECK(mpt_memory(c).current[MPT_MEMORY_FORM] > 0);
    mpt_autocast_begin(c, MPT_BF16); /* another form beside it, with its own values */
    CHECK_EQ_INT(dtype_of(mpt_forward(net, x)), MPT_BF16);
    mpt_autocast_end(c);
    end();
}

/* What a forward pass gives from the form as it stands, and from one made anew. */
static void check_form(mpt_module net, mpt_tensor x, mpt_dtype dtype) {
    float kept[8], made[8], weight[64];
    mpt_tensor parameter = mpt_parameter(net, "0.weight");
    mpt_no_grad_begin(c);
    mpt_autocast_begin(c, dtype);
    mpt_counters start = counted();
    mpt_read_f32(mpt_forward(net, x), kept, 8);
    CHECK_EQ_INT(counted().form_misses, start.form_misses); /* nobody had to make it */
    mpt_read_f32(parameter, weight, 64);
    mpt_write(parameter, weight, sizeof weight);
    mpt_read_f32(mpt_forward(net, x), made, 8);
    CHECK_EQ_INT(counted().form_misses, start.form_misses + 1);
    mpt_autocast_end(c);
    mpt_no_grad_end(c);
    CHECK_EQ_BITS(kept, made, sizeof made);
}

/* An update writes the form that was in use, and a skipped one leaves it right. A scaler's step is
   two launches: look, update. */
TEST(updates_write_the_form) {
    for (int adam = 0; adam < 2; adam++)
        for (int half = 0; half < 2; half++) {
            begin();
            mpt_dtype dtype = half ? MPT_BF16 : MPT_F16;
            mpt_module first = mpt_nn_linear(c, 8, 8), second = mpt_nn_linear(c, 8, 8);
            mpt_module net = mpt_sequential(c, first, mpt_nn_relu(c), second, MPT_END);
            mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 8));
            mpt_optimizer opt = adam ? mpt_adamw(net, NULL) : mpt_sgd(net, NULL);
            mpt_scaler scaler = mpt_grad_scaler(c, NULL);
            for (int step = 0; step < 3; step++) {
                float before[8], after[8], factor = step == 1 ? 1e38f : 0.1f;
                mpt_autocast_begin(c, dtype);
                mpt_tensor y = mpt_forward(net, x);
                mpt_autocast_end(c);
                mpt_read_f32(y, before, 8);
                mpt_zero_grad(opt);
                mpt_tensor sum = mpt_sum(mpt_cast(y, MPT_F32), MPT_ALL_DIMS, false);
                mpt_tensor loss = mpt_mul_scalar(sum, factor);
                mpt_backward(mpt_scale_loss(scaler, loss));
                int64_t launches = counted().launches;
                mpt_scaler_step(scaler, opt);
                CHECK_EQ_INT(counted().launches, launches + 2);
                mpt_scaler_update(scaler);
                CHECK_EQ_INT(mpt_step_outcome(scaler),
                             step == 1 ? MPT_OUTCOME_SKIPPED : MPT_OUTCOME_APPLIED);
                check_form(net, x, dtype);
                mpt_autocast_begin(c, dtype);
                mpt_read_f32(mpt_forward(net, x), after, 8);
                mpt_autocast_end(c);
                CHECK((memcmp(before, after, sizeof after) == 0) == (step == 1));
            }
            end();
        }
}

/* ==== Pure half ==== */

TEST(half_storage_is_half) {
    begin();
    mpt_module net =
        mpt_sequential(c, mpt_nn_linear(c, 128, 128), mpt_nn_linear(c, 128, 128), MPT_END);
    mpt_parameter(net, "0.weight");
    int64_t full = mpt_memory(c).current[MPT_MEMORY_PARAMETER];
    CHECK(full >= 2 * (128 * 128 + 128) * 4);
    mpt_half(net, MPT_F16);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_PARAMETER], full / 2);
    CHECK_EQ_INT(dtype_of(mpt_parameter(net, "1.bias")), MPT_F16);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    CHECK(mpt_memory(c).current[MPT_MEMORY_MASTER] >= 2 * (128 * 128 + 128) * 4);
    mpt_tensor x = mpt_ones(c, MPT_F16, MPT_SHAPE(4, 128)), y = mpt_forward(net, x);
    CHECK_EQ_INT(dtype_of(y), MPT_F16);
    mpt_backward(mpt_mean(y, MPT_ALL_DIMS, false));
    CHECK_EQ_INT(dtype_of(mpt_grad(mpt_parameter(net, "0.weight"))), MPT_F32);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_GRADIENT] / 4, full / 4);
    mpt_step(opt);
    end();
}

/* Steps too small for fp16 add up in the masters. */
TEST(masters_keep_small_steps) {
    begin();
    mpt_module net = mpt_sequential(c, mpt_nn_linear_no_bias(c, 1, 1), MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_ONES, 0, 0));
    mpt_half(net, MPT_F16);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1.0 / 16384;
    mpt_optimizer opt = mpt_sgd(net, &config);
    mpt_tensor x = mpt_ones(c, MPT_F16, MPT_SHAPE(1, 1)), w = mpt_parameter(net, "0.weight");
    double seen_at[33];
    for (int i = 1; i <= 32; i++) {
        mpt_zero_grad(opt);
        mpt_backward(mpt_sum(mpt_forward(net, x), MPT_ALL_DIMS, false));
        mpt_step(opt);
        seen_at[i] = mpt_item(w);
    }
    CHECK(seen_at[1] == 1.0);              /* 1 - 2^-14 rounds back */
    CHECK(seen_at[32] == 1.0 - 1.0 / 512); /* but nothing was lost */
    end();
}

TEST(half_names_the_weight_that_overflows) {
    begin();
    mpt_module net = make_net(c);
    float values[16 * FEATURES] = {0};
    values[37] = 65520; /* rounds to infinity, 65519 does not */
    mpt_write(mpt_parameter(net, "0.weight"), values, sizeof values);
    uint64_t before = mpt_module_hash(net);
    CHECK_EQ_INT(mpt_half(net, MPT_F16), MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(c), "parameter 0.weight: element 37 is 65520");
    CHECK_CONTAINS(mpt_error(c), "65504");
    mpt_clear_error(c);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(dtype_of(mpt_parameter(net, "3.weight")), MPT_F32);
    CHECK_EQ_INT(mpt_half(net, MPT_BF16), MPT_OK);
    mpt_module other = make_net(c);
    values[37] = 65504;
    mpt_write(mpt_parameter(other, "0.weight"), values, sizeof values);
    CHECK_EQ_INT(mpt_half(other, MPT_F16), MPT_OK);
    float back[16 * FEATURES];
    mpt_read_f32(mpt_parameter(other, "0.weight"), back, 16 * FEATURES);
    CHECK_NEAR(back[37], 65504, 0);
    end();
}

TEST(autocast_over_a_half_net) {
    begin();
    mpt_module net = make_net(c);
    mpt_half(net, MPT_BF16);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, FEATURES));
    mpt_eval(net);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_tensor y = mpt_forward(net, x); /* takes inputs of any float dtype */
    mpt_autocast_end(c);
    CHECK_EQ_INT(dtype_of(y), MPT_F32);     /* log_softmax */
    CHECK_EQ_INT(counted().form_misses, 0); /* parameters are low already */
    end();
}

TEST_TABLE = {T(every_op_in_every_region),
              T(the_policy_as_text),
              T(regions_nest),
              T(values_are_rounded_where_the_table_says),
              T(mixed_dtypes_outside_name_both),
              T(mixed_dtypes_meet_in_a_region),
              T(mixed_dtypes_meet_in_half_in_a_narrow_region),
              T(gradients_keep_their_dtypes),
              T(overrides_by_module),
    T(a_layer_in_the_middle_is_kept_in_fp32),
              T(forms_are_made_once_per_step),
              T(updates_write_the_form),
              T(half_storage_is_half),
              T(masters_keep_small_steps),
              T(half_names_the_weight_that_overflows),
              T(autocast_over_a_half_net)};
TEST_MAIN
