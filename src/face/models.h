/* ----
 * face/models.h: the public API of what convolutional networks and transformers are made of.
 * ---- */
#ifndef MPT__FACE_MODELS_INCLUDED
#define MPT__FACE_MODELS_INCLUDED

#include "face/inspection.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Convolution ========================================================================== */

/* Images are [N, C, H, W], as in PyTorch, in memory contiguous or channels last, that is as a dense
   [N, H, W, C], which convolutions compute in. What comes from a channels-last tensor, or a part of
   one, is channels last too, and gradients lie as what they belong to; matmul, linear, layer and
   RMS norms and attention give contiguous results. Other layouts are copied where they meet a
   convolution, in launches of their own. So convert a batch once, at the start of the net. */
MPTRAIN_API mpt_tensor mpt_to_channels_last(mpt_tensor x); /* x itself if it is */
MPTRAIN_API bool mpt_is_channels_last(mpt_tensor x);       /* false for other ranks than 4 */

/* Pairs: along H and along W. One dimension: the second one. */
typedef struct mpt_conv_config {
    int64_t stride[2];         /* 1 */
    int64_t padding[2];        /* 0; zeros on both sides. Transposed: so much less output */
    int64_t output_padding[2]; /* 0; transposed only: more output at the end */
    int64_t dilation[2];       /* 1 */
    int64_t groups;            /* 1; of channels, each with kernels of its own */
    bool same;                 /* stride 1: padding such that the output has the input's size, an
                                  odd one more at the end; `padding` does not count */
    bool bias;                 /* true; layers: whether there is one */
} mpt_conv_config;
MPTRAIN_API mpt_conv_config mpt_conv_config_default(void);

/* As in torch.nn.functional: x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or a null
   handle -> [N, O, OH, OW] with OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1. Of one
   dimension without H. Transposed, the gradient of such a convolution by its input: weight [C,
   O / groups, KH, KW] -> OH = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1.
   fp32 sums whatever the dtype; f16 or bf16 inside autocast. A NULL config means defaults. */
MPTRAIN_API mpt_tensor mpt_conv2d(
    mpt_tensor x, mpt_tensor weight, mpt_tensor bias, const mpt_conv_config *config);
MPTRAIN_API mpt_tensor mpt_conv1d(
    mpt_tensor x, mpt_tensor weight, mpt_tensor bias, const mpt_conv_config *config);
MPTRAIN_API mpt_tensor mpt_conv_transpose2d(
    mpt_tensor x, mpt_tensor weight, mpt_tensor bias, const mpt_conv_config *config);

/* Layers of them, parameters "weight" and "bias", with PyTorch's default values: uniform within 1 /
   sqrt(second dimension of weight times kernel elements). */
MPTRAIN_API mpt_module mpt_nn_conv2d(mpt_context *context, int64_t in, int64_t out,
    int64_t kernel_h, int64_t kernel_w, const mpt_conv_config *config);
MPTRAIN_API mpt_module mpt_nn_conv1d(
    mpt_context *context, int64_t in, int64_t out, int64_t kernel, const mpt_conv_config *config);
MPTRAIN_API mpt_module mpt_nn_conv_transpose2d(mpt_context *context, int64_t in, int64_t out,
    int64_t kernel_h, int64_t kernel_w, const mpt_conv_config *config);

/* ==== Normalisation and pooling ============================================================ */

/* Norms compute in fp32 whatever goes in and give their input's dtype, also inside autocast:
   y = (x - mean) / sqrt(variance + eps) weight + bias, with the variance over n. weight and bias
   may be of another float dtype than x, or left out (null handles). eps >= 0. */

/* Over the last `dims` dimensions, whose shape weight and bias have. Layer Normalization,
   arXiv:1607.06450; torch.nn.functional.layer_norm. */
MPTRAIN_API mpt_tensor mpt_layer_norm(
    mpt_tensor x, int dims, mpt_tensor weight, mpt_tensor bias, double eps);
/* The same without mean and bias: x / sqrt(mean of x^2 + eps) weight. arXiv:1910.07467. */
MPTRAIN_API mpt_tensor mpt_rms_norm(mpt_tensor x, int dims, mpt_tensor weight, double eps);
/* In one pass over memory: *sum = x + residual, of one shape, rounded to their dtype, and the norm
   of that. */
MPTRAIN_API mpt_tensor mpt_add_layer_norm(mpt_tensor x, mpt_tensor residual, int dims,
    mpt_tensor weight, mpt_tensor bias, double eps, mpt_tensor *sum);
MPTRAIN_API mpt_tensor mpt_add_rms_norm(
    mpt_tensor x, mpt_tensor residual, int dims, mpt_tensor weight, double eps, mpt_tensor *sum);
/* [N, C, ..] over all but dimension 1, weight and bias [C]: with mean and variance [C], which get
   no gradient, or, where both are null handles, with those of the batch, which then must have more
   than one value for each channel. arXiv:1502.03167; torch.nn.functional.batch_norm, whose running
   statistics are the modules' here. */
MPTRAIN_API mpt_tensor mpt_batch_norm(mpt_tensor x, mpt_tensor mean, mpt_tensor variance,
    mpt_tensor weight, mpt_tensor bias, double eps);
/* relu(mpt_batch_norm(..) + residual), in one pass over memory, and one backward: residual is of
   the shape and dtype of x, or a null handle. Layers do it by config.relu, by a relu behind them in
   mpt_sequential, and with a residual as the second input of mpt_forward_n. */
MPTRAIN_API mpt_tensor mpt_batch_norm_relu(mpt_tensor x, mpt_tensor mean, mpt_tensor variance,
    mpt_tensor weight, mpt_tensor bias, double eps, mpt_tensor residual);
/* [N, C, ..] over groups of neighbouring channels of one sample, weight and bias [C]; as many
   groups as channels: instance norm. arXiv:1803.08494; torch.nn.functional.group_norm. */
MPTRAIN_API mpt_tensor mpt_group_norm(
    mpt_tensor x, int64_t groups, mpt_tensor weight, mpt_tensor bias, double eps);

/* Of batch norm alone: momentum, the part of a new statistic in the running one (negative: 1 / the
   number of updates, which makes it the mean of all), track, without which a module has no running
   statistics and takes those of the batch also when it does not train, and relu. */
typedef struct mpt_norm_config {
    double eps;        /* 1e-5 */
    bool weight, bias; /* true; weight 1, bias 0 at first; of RMS norm no bias */
    double momentum;   /* 0.1 */
    bool track;        /* true */
    bool relu;         /* false: a relu follows, after the second input where there is one */
} mpt_norm_config;
MPTRAIN_API mpt_norm_config mpt_norm_config_default(void);
/* Over the last dimensions, which are `shape`. Parameters "weight", "bias". */
MPTRAIN_API mpt_module mpt_nn_layer_norm(
    mpt_context *context, mpt_shape shape, const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_rms_norm(
    mpt_context *context, mpt_shape shape, const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_group_norm(
    mpt_context *context, int64_t groups, int64_t channels, const mpt_norm_config *config);
/* Of [N, C] or [N, C, L], and of [N, C, H, W]. Buffers, named and saved as PyTorch's:
   "running_mean", "running_var" (over n - 1) and "num_batches_tracked". A forward in training, but
   not in inference mode, changes them; in a step, at its end, and not if it fails. An update that
   is not finite, as of a batch that overflowed, is left out and counted. In evaluation they stand
   for the batch's. The second input of mpt_forward_n, if there is one, is added to the result. A
   convolution before it that has a bias is named in a notice to the log, once. */
MPTRAIN_API mpt_module mpt_nn_batch_norm1d(
    mpt_context *context, int64_t features, const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_batch_norm2d(
    mpt_context *context, int64_t features, const mpt_norm_config *config);
/* A buffer by its path ("1.running_mean"); it lives as long as its module. */
MPTRAIN_API mpt_tensor mpt_buffer(mpt_module module, const char *path);
/* How many updates of running statistics were left out in a module and all below it; waits. -1 on
   error. */
MPTRAIN_API int64_t mpt_refused_updates(mpt_module module);

/* Windows that slide over [N, C, H, W], one number for H and one for W; in 1d over [N, C, L] by the
   first numbers. Outputs are as many as fit, or, with ceil_mode, one more that begins inside and
   ends beyond. */
typedef struct mpt_pool_config {
    int64_t window[2];
    int64_t step[2];    /* 0: as large as the window */
    int64_t padding[2]; /* on both sides, at most half the window */
    bool ceil_mode;     /* false */
    bool count_padding; /* true: the padding's zeros count in means */
} mpt_pool_config;
MPTRAIN_API mpt_pool_config mpt_pool_config_make(int64_t window, int64_t step, int64_t padding);
/* The largest element of each window (a NaN is larger than all; of equal ones the first gets the
   gradient), or their mean. NULL means windows of 2. Torch's max_pool2d and avg_pool2d. The result
   lies in memory as x does, its channels innermost or not. */
MPTRAIN_API mpt_tensor mpt_max_pool2d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_avg_pool2d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_max_pool1d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_avg_pool1d(mpt_tensor x, const mpt_pool_config *config);
/* [N, C, height, width] whatever the size of x: element i is of those from floor(i in / out) to
   ceil((i + 1) in / out). */
MPTRAIN_API mpt_tensor mpt_adaptive_avg_pool2d(mpt_tensor x, int64_t height, int64_t width);
MPTRAIN_API mpt_tensor mpt_adaptive_max_pool2d(mpt_tensor x, int64_t height, int64_t width);
MPTRAIN_API mpt_module mpt_nn_max_pool2d(mpt_context *context, const mpt_pool_config *config);
MPTRAIN_API mpt_module mpt_nn_avg_pool2d(mpt_context *context, const mpt_pool_config *config);
MPTRAIN_API mpt_module mpt_nn_adaptive_avg_pool2d(
    mpt_context *context, int64_t height, int64_t width);

/* ==== Embedding and attention ============================================================== */

/* torch.nn.functional.embedding: the rows of weight [V, D] that ids, i64 [..], name -> [.., D], of
   the weight's dtype. padding_index names a row without a gradient, -1 none. An id out of range is
   an error that names its element; weights stay untouched. The gradient is [V, D], its sums in
   fp32, in the order of the ids. */
MPTRAIN_API mpt_tensor mpt_embedding(mpt_tensor ids, mpt_tensor weight, int64_t padding_index);
/* torch.nn.Embedding: "weight" [count, width], normal of deviation 1, the padding row 0. */
MPTRAIN_API mpt_module mpt_nn_embedding(
    mpt_context *context, int64_t count, int64_t width, int64_t padding_index);

/* mask: bool, true takes part, or floats added to the scores; broadcasts to [B, H, T, S]; gets no
   gradient. causal: query t sees keys 0 to t, also where T and S differ; and what the mask lets
   through, if there is one. */
typedef struct mpt_attention_config {
    mpt_tensor mask; /* or a null handle */
    bool causal;     /* false */
    double dropout;  /* 0; none in eval mode and in inference, as mpt_dropout */
    double scale;    /* of the scores; 0: 1 / sqrt(D) */
    int64_t window;  /* 0; with causal: query t sees the last `window` keys up to its own alone, and
                        time grows with T * window */
    int64_t offset;  /* 0; with causal: query t stands at key offset + t, as behind a cache */
} mpt_attention_config;
MPTRAIN_API mpt_attention_config mpt_attention_config_default(void);
/* softmax(q k^T scale + mask) v: q [B, H, T, D], k [B, G, S, D], v [B, G, S, Dv] -> [B, H, T, Dv],
   as torch.nn.functional.scaled_dot_product_attention; without B, or without B and heads, too. G
   heads of k and v serve H = n G of q: multi-query, grouped-query. Any strides: views of one
   projection are read where they lie. Computed in fp32 by blocks of queries and keys, so that
   memory is linear in T and S, also in backward, which computes the scores again. Of bf16, CPUs
   with AVX512_BF16 but no AMX round weights and their slopes to bf16, too, for the products with v,
   dout, q and k, as PyTorch does on CPUs. Matmul-like for autocast. A query that sees no key gives
   0 and passes no gradient (PyTorch before 2.5: NaN). What false, -infinity or causality hides has
   no part in anything, even if it is NaN (PyTorch: 0 times NaN may come through). */
MPTRAIN_API mpt_tensor mpt_scaled_dot_product_attention(
    mpt_tensor q, mpt_tensor k, mpt_tensor v, const mpt_attention_config *config);

/* Rotary positions, arXiv:2104.09864: pair i of the D / 2 of row t is turned by (offset + t)
   base^(-2 i / D) radians. x [.., T, D] of rank 2 to 4, or with `heads` [B, T, heads * D], and D
   even. Angles are doubles, the rest is fp32, also in backward; the result has the dtype of x. */
typedef struct mpt_rope_config {
    double base;      /* 10000 */
    int64_t offset;   /* 0; position of the first row: how many a cache holds */
    bool interleaved; /* false: elements i and i + D / 2 are a pair, as in GPT-NeoX and Hugging
                         Face's Llama; true: 2 i and 2 i + 1, as in the paper and Meta's Llama */
    int heads;        /* 0; that lie side by side in the last dimension, up to 255 */
} mpt_rope_config;
MPTRAIN_API mpt_rope_config mpt_rope_config_default(void);
MPTRAIN_API mpt_tensor mpt_rope(mpt_tensor x, const mpt_rope_config *config);

/* Gated units, arXiv:2002.05202: x in two halves a and b along dim. */
typedef enum mpt_gate {
    MPT_GATE_SIGMOID = 0, /* a sigmoid(b): torch.nn.functional.glu */
    MPT_GATE_SILU,        /* silu(a) b: SwiGLU */
    MPT_GATE_GELU         /* gelu(a) b: GEGLU */
} mpt_gate;
MPTRAIN_API mpt_tensor mpt_glu(mpt_tensor x, int dim, mpt_gate gate);
/* Along the last dimension. */
MPTRAIN_API mpt_module mpt_nn_glu(mpt_context *context, mpt_gate gate);

/* Places as inputs, by the tables of Instant-NGP, arXiv:2201.05989: x [.., D] from 0 to 1, D 2 or
   3, table [L, T, F] -> [.., L F]. Level l has R cells along each dimension, from `coarsest` on the
   first to `finest` on the last, at equal ratios and rounded down. Each corner of a cell has a row
   of the table, its own if T is enough, else that of a hash; between corners it is linear. What is
   outside counts as at the edge. x gets no gradient: where it asks for one that is an error. The
   table's is summed in fp32 in the order of x. F is 8 at most; the result has the table's dtype. */
MPTRAIN_API mpt_tensor mpt_hash_grid(
    mpt_tensor x, mpt_tensor table, int64_t coarsest, int64_t finest);
typedef struct mpt_hash_grid_config {
    int64_t levels;           /* 16 */
    int64_t entries;          /* 2^14, of each level */
    int64_t features;         /* 2 */
    int64_t coarsest, finest; /* 16, 512; up to 2^20 */
} mpt_hash_grid_config;
MPTRAIN_API mpt_hash_grid_config mpt_hash_grid_config_default(void);
/* "table", uniform from -1e-4 to 1e-4. */
MPTRAIN_API mpt_module mpt_nn_hash_grid(mpt_context *context, const mpt_hash_grid_config *config);

typedef struct mpt_multi_head_config {
    bool bias;            /* true */
    bool causal;          /* false */
    double dropout;       /* 0: of the attention weights */
    bool qk_norm;         /* false; RMS norms of each head's queries and keys, eps 1e-5, with the
                       parameters "q_norm.weight" and "k_norm.weight" [width / heads], as Qwen3 */
    int64_t window;       /* 0; with causal: as in mpt_attention_config */
    mpt_rope_config rope; /* base 0: none. Queries and keys behind the norms; heads do not count */
} mpt_multi_head_config;
MPTRAIN_API mpt_multi_head_config mpt_multi_head_config_default(void);
/* torch.nn.MultiheadAttention with batch_first and without weights as a result: "in_proj_weight"
   [3 width, width], "in_proj_bias" [3 width], "out_proj.weight", "out_proj.bias". mpt_forward(x) is
   self-attention, x [B, T, width]; mpt_forward_n takes query, key and value, and maybe a mask as
   mpt_attention_config has it (PyTorch's key_padding_mask says the opposite: true is left out). At
   most 255 heads. */
MPTRAIN_API mpt_module mpt_nn_multi_head_attention(
    mpt_context *context, int64_t width, int heads, const mpt_multi_head_config *config);

/* Generation, a token at a time: between begin and end the causal layers of
   mpt_nn_multi_head_attention in a net keep the keys and values of all places that they saw, up to
   `capacity` for each of `batch` texts. A forward, in inference mode, takes x [batch, T, ..], which
   stands behind those places, T as often as not 1; rotary positions go on by themselves, those of
   an embedding begin at mpt_cache_length. Memory is taken in the first forward, none later, in the
   dtype of its keys. Other layers are left as they are. Begun again, a cache is empty. */
MPTRAIN_API mpt_status mpt_cache_begin(mpt_module net, int64_t batch, int64_t capacity);
/* How many places the first of these layers holds; 0 without a cache, -1 on error. */
MPTRAIN_API int64_t mpt_cache_length(mpt_module net);
/* Forgets all places from `length` on, for another text or another way to go on. */
MPTRAIN_API mpt_status mpt_cache_rewind(mpt_module net, int64_t length);
MPTRAIN_API mpt_status mpt_cache_end(mpt_module net);

/* mpt_cross_entropy(mpt_linear(x, weight)) for many classes: x [.., D], weight [V, D], targets i64
   [..] -> fp32, 0-d, or like the targets with MPT_NONE. Of the logits [.., V] some rows exist at a
   time, about 32 MB, in fp32; backward computes them again. The weight may be that of an embedding
   (tied weights): both add to its gradient. */
MPTRAIN_API mpt_tensor mpt_linear_cross_entropy(
    mpt_tensor x, mpt_tensor weight, mpt_tensor targets, const mpt_nll_config *config);

/* ==== Recurrent layers =====================================================================

   Formulas, names and layouts are PyTorch's. Sequences are [T, B, features], or [B, T, features]
   with batch_first. Gates and cells are computed and kept in fp32. A forward without history keeps
   nothing. Builds with MPTRAIN_NO_RECURRENT have none of this: an error. */

/* One layer in one direction. Null handles: absent. */
typedef struct mpt_cell_config {
    mpt_tensor weight_ih, weight_hh; /* [G H, features], [G H, H]; G: 1, of an LSTM 4, of a GRU 3 */
    mpt_tensor bias_ih, bias_hh;     /* [G H] */
    mpt_tensor weight_hr;            /* [P, H], of an LSTM: h is P wide, and weight_hh [G H, P] */
    mpt_tensor lengths;              /* i64 [B]: steps that each sequence has, from 0 to T */
    bool batch_first;                /* false */
    bool reverse;                    /* false; true: from the last step to the first */
    bool relu;                       /* false: tanh; of mpt_rnn */
} mpt_cell_config;
MPTRAIN_API mpt_cell_config mpt_cell_config_default(void);
/* x -> the state h at each step, [T, B, H] or [B, T, H]. *h, *c [B, H]: before the call the state
   to begin with, a null handle for zeros; after it that at the end. NULL: zeros, and nobody asks.
   Gradients flow through both; mpt_detach or mpt_keep a state to cut them off. Where a sequence is
   over, its output is 0 and its state stays, as with torch's pack_padded_sequence; `reverse` begins
   at its last step. Lengths are read on the device, so that a captured step may have others each
   time. Matmul-like for autocast. */
MPTRAIN_API mpt_tensor mpt_rnn(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h);
/* LSTM: gates i, f, g, o. */
MPTRAIN_API mpt_tensor mpt_lstm(
    mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h, mpt_tensor *c);
/* GRU: gates r, z, n. */
MPTRAIN_API mpt_tensor mpt_gru(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h);

typedef struct mpt_recurrent_config {
    int layers;         /* 1; up to 64 */
    bool bias;          /* true */
    bool batch_first;   /* false */
    bool bidirectional; /* false; true: outputs of both directions side by side */
    bool relu;          /* false: tanh; of mpt_nn_rnn and its cell */
    double dropout;     /* 0: between layers, in training */
    int64_t projection; /* 0: none; of mpt_nn_lstm, torch's proj_size, below `hidden` */
} mpt_recurrent_config;
MPTRAIN_API mpt_recurrent_config mpt_recurrent_config_default(void);
/* torch.nn.RNN, LSTM, GRU: "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0" and, with a
   projection, "weight_hr_l0", the same for further layers, with "_reverse" for the other direction;
   uniform within 1 / sqrt(hidden). mpt_forward gives the output of the last layer. mpt_forward_n
   takes x, then h (of an LSTM h and c) or nothing, then i64 lengths [B] or nothing; and gives the
   output, h, c, as many as are asked for. States are [layers directions, B, hidden]. Without a
   batch x is [T, features] and states are [layers directions, hidden]. */
MPTRAIN_API mpt_module mpt_nn_rnn(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);
MPTRAIN_API mpt_module mpt_nn_lstm(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);
MPTRAIN_API mpt_module mpt_nn_gru(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);
/* torch.nn.RNNCell, LSTMCell, GRUCell: one step. "weight_ih", "weight_hh", "bias_ih", "bias_hh".
   mpt_forward_n takes x [B, features] or [features], then h (of an LSTM h and c) or nothing, and
   gives h, c after it. Of the config bias and relu count; what only layers have is an error. */
MPTRAIN_API mpt_module mpt_nn_rnn_cell(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);
MPTRAIN_API mpt_module mpt_nn_lstm_cell(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);
MPTRAIN_API mpt_module mpt_nn_gru_cell(
    mpt_context *context, int64_t in, int64_t hidden, const mpt_recurrent_config *config);

/* ==== Images of another size =============================================================== */

typedef enum mpt_interpolation { MPT_NEAREST = 0, MPT_BILINEAR } mpt_interpolation;
/* torch.nn.functional.interpolate of [N, C, H, W]: to MPT_SHAPE(height, width), or, with MPT_SCALAR
   for the size, to `scale` times the size, rounded down. align_corners, of MPT_BILINEAR: the
   corners stay where they are; else a pixel is the area around its centre. */
MPTRAIN_API mpt_tensor mpt_interpolate(
    mpt_tensor x, mpt_shape size, double scale, mpt_interpolation mode, bool align_corners);
MPTRAIN_API mpt_module mpt_nn_upsample(
    mpt_context *context, mpt_shape size, double scale, mpt_interpolation mode, bool align_corners);

/* ==== The net seen ========================================================================== */

/* What a forward pass computes, as a graph: inputs, before each op the parameters and other tensors
   that it is the first to read, last the outputs. A user's module is seen through, a user's op is
   one node, as is an activation that a layer takes into its own call. */
typedef enum mpt_node_kind {
    MPT_NODE_INPUT = 0,
    MPT_NODE_PARAMETER,
    MPT_NODE_BUFFER,   /* of a module: running statistics */
    MPT_NODE_CONSTANT, /* any other that no op made */
    MPT_NODE_OP,
    MPT_NODE_USER_OP,
    MPT_NODE_OUTPUT /* its input */
} mpt_node_kind;
enum { MPT_NODE_INPUTS = 9, MPT_NODE_OUTPUTS = 4 };
typedef struct mpt_edge {
    int node, output; /* which output of which node; -1: an input left out */
} mpt_edge;
typedef struct mpt_node {
    mpt_node_kind kind;
    const char *name;   /* of the op ("linear"); the path of what a module holds ("0.weight") */
    const char *module; /* path of its module; "": the net */
    const char *layer;  /* of an op: mpt_module_kind of that */
    int inputs, outputs;
    mpt_edge input[MPT_NODE_INPUTS];
    mpt_shape shape[MPT_NODE_OUTPUTS];
    mpt_dtype dtype[MPT_NODE_OUTPUTS];
    mpt_dtype compute; /* of an op: what a product rounds its inputs to */
    double flop;       /* of its launches; a product and a sum are two */
    bool trainable;    /* of a parameter: it collects a gradient */
    bool changed;      /* an input or the value: in place, by no node */
    double number[2];  /* what an op is told, as src/ops/ has it */
    int64_t index[MPT_MAX_RANK];
    int rank, activation, reduction;
    mpt_tensor value; /* where no op made it; of a constant until the graph ends */
} mpt_node;
/* With MPTRAIN_WATCH: one forward in mpt_eval and inference mode and the autocast region that is
   open. Nothing of a training changes. Inputs: as of mpt_forward_n. An error inside recordings,
   captured steps and backward passes. */
MPTRAIN_API mpt_graph mpt_trace(mpt_module net, const mpt_tensor *inputs, int n_inputs);
MPTRAIN_API int mpt_graph_count(mpt_graph graph); /* of nodes; -1 on error */
/* The graph's, until it is destroyed; NULL on error. */
MPTRAIN_API const mpt_node *mpt_graph_node(mpt_graph graph, int index);
MPTRAIN_API mpt_status mpt_graph_destroy(mpt_graph graph);

#ifdef __cplusplus
}
#endif
#endif /* MPT__FACE_MODELS_INCLUDED */
