/* 04_modules.c - lesson 4: modules: layers that own their weights, and trees of layers.
 *
 * A sequential runs its children one after the other. What does not fit into a row, such as a
 * shortcut around two layers, is a module of your own: a function that says what forward does.
 * test arguments: */
#include "lesson.h"

/* x + layers(x): the block that deep networks are made of. */
static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_add(in[0], mpt_forward(mpt_child(self, "layers"), in[0]));
    return MPT_OK;
}

static mpt_module block(mpt_context *ctx, int64_t width) {
    static mpt_module_class residual = {"residual", block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(ctx, &residual, NULL);
    mpt_add_child(self, "layers",
                  mpt_sequential(ctx, mpt_nn_linear(ctx, width, width), mpt_nn_relu(ctx),
                                 mpt_nn_linear(ctx, width, width), MPT_END));
    return self;
}

int main(void) {
    mpt_context *ctx = lesson_begin("04_modules", "Lesson 4: modules");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("A net of layers and blocks");
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 4, 16), mpt_nn_relu(ctx), block(ctx, 16),
                       block(ctx, 16), mpt_nn_linear(ctx, 16, 3), MPT_END);
    mpt_set_init(net, "4.bias", mpt_init_make(MPT_INIT_ZEROS, 0.0, 0.0)); /* a recipe */
    char table[4096];
    mpt_summary(net, table, sizeof table);
    printf("%s", table);

    heading("Parameters have the names of their path, as in PyTorch's state_dict");
    for (int i = 0; i < mpt_parameter_count(net); i++) {
        char path[64];
        mpt_tensor parameter = mpt_parameter_at(net, i, path, sizeof path);
        printf("%-24s %5lld numbers\n", path, (long long)mpt_numel(parameter));
    }
    show("4.bias, by its recipe,", mpt_parameter(net, "4.bias"));

    heading("Two samples through the net");
    mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(2, 4));
    mpt_tensor y = mpt_forward(net, x);
    show("net(x)", y);

    heading("The first values depend on the seed and the path alone");
    printf("hash of all weights: %016llx, on every computer\n",
           (unsigned long long)mpt_module_hash(net));
    const bool right =
        mpt_parameter_numel(net) == (4 * 16 + 16) + 4 * (16 * 16 + 16) + (16 * 3 + 3);
    return lesson_end(ctx, right && mpt_numel(y) == 6);
}
