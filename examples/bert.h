/* bert.h - BERT for masked words, with the names of Hugging Face's BertForMaskedLM, but for the
 * projections of its attentions, which are one. arXiv 1810.04805. */
#ifndef BERT_H
#define BERT_H

#include "transformer.h"

/* Of BERT-base: 768, 12, 12, 3072, 512, 30522, 2. */
typedef struct bert_shape {
    int64_t width, layers, heads, hidden; /* hidden: of the GELU layers */
    int64_t positions, vocabulary, types;
} bert_shape;

/* Norms behind the shortcuts. */
static inline mpt_status bert_block_forward(mpt_module self, void *user, const mpt_tensor *in,
                                            int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add(run_child(self, "attention.self", in[0]), in[0]);
    x = run_child(self, "attention.output.LayerNorm", x);
    mpt_tensor y = mpt_gelu(run_child(self, "intermediate.dense", x));
    out[0] = run_child(self, "output.LayerNorm", mpt_add(run_child(self, "output.dense", y), x));
    return MPT_OK;
}

/* A module that only holds one or two others. */
static inline mpt_module bert_holder(mpt_context *ctx, const char *a, mpt_module first,
                                     const char *b, mpt_module second) {
    mpt_module self = mpt_nn_list(ctx, MPT_END);
    mpt_add_child(self, a, first);
    if (b) mpt_add_child(self, b, second);
    return self;
}

static inline mpt_module bert_block(mpt_context *ctx, const bert_shape *s) {
    static mpt_module_class cls = {"block", bert_block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(ctx, &cls, NULL), none = self;
    mpt_module attention = mpt_nn_multi_head_attention(ctx, s->width, (int)s->heads, NULL);
    mpt_module norm = bert_holder(ctx, "LayerNorm", layer_norm(ctx, s->width, 1e-12), NULL, none);
    mpt_add_child(self, "attention", bert_holder(ctx, "self", attention, "output", norm));
    mpt_module up = mpt_nn_linear(ctx, s->width, s->hidden);
    mpt_add_child(self, "intermediate", bert_holder(ctx, "dense", up, NULL, none));
    mpt_module down = mpt_nn_linear(ctx, s->hidden, s->width);
    mpt_add_child(self, "output",
                  bert_holder(ctx, "dense", down, "LayerNorm", layer_norm(ctx, s->width, 1e-12)));
    return self;
}

/* Tokens [B, T], positions [T] and the kinds of tokens [T], all 0 here -> logits [B, T,
 * vocabulary], by the embedding's own rows. */
static inline mpt_status bert_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                      mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = run_child(self, "bert.embeddings.word_embeddings", in[0]);
    x = mpt_add(x, run_child(self, "bert.embeddings.position_embeddings", in[1]));
    x = mpt_add(x, run_child(self, "bert.embeddings.token_type_embeddings", in[2]));
    x = run_child(self, "bert.encoder.layer", run_child(self, "bert.embeddings.LayerNorm", x));
    x = mpt_gelu(run_child(self, "cls.predictions.transform.dense", x));
    x = run_child(self, "cls.predictions.transform.LayerNorm", x);
    out[0] = mpt_linear(x, mpt_parameter(self, "bert.embeddings.word_embeddings.weight"),
                        mpt_parameter(self, "cls.predictions.bias"), MPT_ACTIVATION_NONE);
    return MPT_OK;
}

static inline mpt_module make_bert(mpt_context *ctx, const bert_shape *s) {
    static mpt_module_class cls = {"bert", bert_forward, NULL, NULL, NULL, 3, 1};
    mpt_module self = mpt_module_create(ctx, &cls, NULL), none = self;
    mpt_module embeddings = mpt_nn_list(ctx, MPT_END), blocks[TRANSFORMER_BLOCKS];
    mpt_add_child(embeddings, "word_embeddings",
                  mpt_nn_embedding(ctx, s->vocabulary, s->width, -1));
    mpt_add_child(embeddings, "position_embeddings",
                  mpt_nn_embedding(ctx, s->positions, s->width, -1));
    mpt_add_child(embeddings, "token_type_embeddings",
                  mpt_nn_embedding(ctx, s->types, s->width, -1));
    mpt_add_child(embeddings, "LayerNorm", layer_norm(ctx, s->width, 1e-12));
    for (int64_t i = 0; i < s->layers; i++) blocks[i] = bert_block(ctx, s);
    mpt_module layer = mpt_sequential_array(ctx, blocks, (int)s->layers);
    mpt_module encoder = bert_holder(ctx, "layer", layer, NULL, none);
    mpt_add_child(self, "bert", bert_holder(ctx, "embeddings", embeddings, "encoder", encoder));
    mpt_module transform = bert_holder(ctx, "dense", mpt_nn_linear(ctx, s->width, s->width),
                                       "LayerNorm", layer_norm(ctx, s->width, 1e-12));
    mpt_module predictions = bert_holder(ctx, "transform", transform, NULL, none);
    mpt_add_parameter(predictions, "bias", MPT_SHAPE(s->vocabulary),
                      mpt_init_make(MPT_INIT_ZEROS, 0.0, 0.0));
    mpt_add_child(self, "cls", bert_holder(ctx, "predictions", predictions, NULL, none));
    mpt_set_init(self, NULL, mpt_init_make(MPT_INIT_NORMAL, 0.0, 0.02));
    return self;
}

/* Loads weights of this program, or of Hugging Face's BERT. */
static inline mpt_status bert_load(mpt_module net, const char *path, int *loaded) {
    static const mpt_rename names[] = {
        {"*.query.weight", "*.in_proj_weight", false, 0, 3},
        {"*.key.weight", "*.in_proj_weight", false, 1, 3},
        {"*.value.weight", "*.in_proj_weight", false, 2, 3},
        {"*.query.bias", "*.in_proj_bias", false, 0, 3},
        {"*.key.bias", "*.in_proj_bias", false, 1, 3},
        {"*.value.bias", "*.in_proj_bias", false, 2, 3},
        {"*.attention.output.dense.weight", "*.attention.self.out_proj.weight", false, 0, 0},
        {"*.attention.output.dense.bias", "*.attention.self.out_proj.bias", false, 0, 0},
        {"*.LayerNorm.gamma", "*.LayerNorm.weight", false, 0, 0}, /* of old files */
        {"*.LayerNorm.beta", "*.LayerNorm.bias", false, 0, 0}};
    static const char *const ignored[] = {"bert.pooler.*", "cls.seq_relationship.*",
                                          "cls.predictions.decoder.*",
                                          "bert.embeddings.position_ids"};
    mpt_load_config config = mpt_load_config_default();
    config.renames = names, config.rename_count = sizeof names / sizeof *names;
    config.ignore = ignored, config.ignore_count = sizeof ignored / sizeof *ignored;
    return mpt_load(net, path, &config, loaded);
}

static inline mpt_tensor bert_logits(mpt_module net, mpt_tensor tokens, mpt_tensor positions,
                                     mpt_tensor types) {
    mpt_tensor in[3] = {tokens, positions, types}, out;
    mpt_forward_n(net, in, 3, &out, 1);
    return out;
}

#endif
