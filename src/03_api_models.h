/* ---------------------------------------------------------------------------------------------
 * 03_api_models.h: the public API of what convolutional networks and transformers are made of.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__03_API_MODELS_INCLUDED
#define MPT__03_API_MODELS_INCLUDED

#include "02_api_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Convolution ========================================================================== */

/* ==== Normalisation and pooling ============================================================ */

/* ==== Embedding and attention ============================================================== */

/* torch.nn.functional.embedding: the rows of weight [V, D] that ids, i64 [..], name -> [.., D], of
   the weight's dtype. padding_index names a row without a gradient, -1 none. An id out of range is
   an error that names its element; weights stay untouched. The gradient is [V, D], its sums in
   fp32, in the order of the ids. */
MPTRAIN_API mpt_tensor mpt_embedding(mpt_tensor ids, mpt_tensor weight, int64_t padding_index);
/* torch.nn.Embedding: "weight" [count, width], normal of deviation 1, the padding row 0. */
MPTRAIN_API mpt_module mpt_nn_embedding(mpt_context *context, int64_t count, int64_t width,
                                        int64_t padding_index);

/* mask: bool, true takes part, or floats added to the scores; broadcasts to [B, H, T, S]; gets no
   gradient. causal: query t sees keys 0 to t, also where T and S differ; and what the mask lets
   through, if there is one. */
typedef struct mpt_attention_config {
    mpt_tensor mask; /* or a null handle */
    bool causal;     /* false */
    double dropout;  /* 0; none in eval mode and in inference, as mpt_dropout */
    double scale;    /* of the scores; 0: 1 / sqrt(D) */
} mpt_attention_config;
MPTRAIN_API mpt_attention_config mpt_attention_config_default(void);
/* softmax(q k^T scale + mask) v: q [B, H, T, D], k [B, G, S, D], v [B, G, S, Dv] -> [B, H, T, Dv],
   as torch.nn.functional.scaled_dot_product_attention; without B, or without B and heads, too. G
   heads of k and v serve H = n G of q: multi-query, grouped-query. Any strides: views of one
   projection are read where they lie. Computed in fp32 by blocks of queries and keys, so that
   memory is linear in T and S, also in backward, which computes the scores again. Matmul-like for
   autocast. A query that sees no key gives 0 and passes no gradient (PyTorch before 2.5: NaN). */
MPTRAIN_API mpt_tensor mpt_scaled_dot_product_attention(mpt_tensor q, mpt_tensor k, mpt_tensor v,
                                                        const mpt_attention_config *config);

typedef struct mpt_multi_head_config {
    bool bias;      /* true */
    bool causal;    /* false */
    double dropout; /* 0: of the attention weights */
} mpt_multi_head_config;
MPTRAIN_API mpt_multi_head_config mpt_multi_head_config_default(void);
/* torch.nn.MultiheadAttention with batch_first and without weights as a result: "in_proj_weight"
   [3 width, width], "in_proj_bias" [3 width], "out_proj.weight", "out_proj.bias". mpt_forward(x) is
   self-attention, x [B, T, width]; mpt_forward_n takes query, key and value, and maybe a mask as
   mpt_attention_config has it (PyTorch's key_padding_mask says the opposite: true is left out). At
   most 255 heads. */
MPTRAIN_API mpt_module mpt_nn_multi_head_attention(mpt_context *context, int64_t width, int heads,
                                                   const mpt_multi_head_config *config);

/* Makes the parameter at `path` of a tree that is not yet in use the one at `source`, of the same
   shape: mpt_tie(net, "head.weight", "table.weight"). It counts, trains and is saved once, under
   the source's path, with the source's first values; mpt_parameter finds it under both. */
MPTRAIN_API mpt_status mpt_tie(mpt_module module, const char *path, const char *source);

/* mpt_cross_entropy(mpt_linear(x, weight)) for many classes: x [.., D], weight [V, D], targets i64
   [..] -> fp32, 0-d, or like the targets with MPT_NONE. Of the logits [.., V] some rows exist at a
   time, about 32 MB, in fp32; backward computes them again. The weight may be that of an embedding
   (tied weights): both add to its gradient. */
MPTRAIN_API mpt_tensor mpt_linear_cross_entropy(mpt_tensor x, mpt_tensor weight, mpt_tensor targets,
                                                const mpt_nll_config *config);

#ifdef __cplusplus
}
#endif
#endif /* MPT__03_API_MODELS_INCLUDED */
