/* ----
 * face/training.h: the public API of modules, optimizers, data, files and whole trainings.
 * ---- */
#ifndef MPT__FACE_TRAINING_INCLUDED
#define MPT__FACE_TRAINING_INCLUDED

#include "face/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Modules ================================================================================ */

/* Layers. A module belongs to one context; parameters get their values when the tree's root is
   first used (forward, optimizer, save, value read), from (seed, root, path) alone: root is the
   number of the tree in its context, which failed creations do not change, or its label. */
/* "weight" [out, in] and "bias" [out]: mpt_linear. An activation that follows it in a sequential
   runs in the same kernel. */
MPTRAIN_API mpt_module mpt_nn_linear(
    mpt_context *context, int64_t in_features, int64_t out_features);
MPTRAIN_API mpt_module mpt_nn_linear_no_bias(
    mpt_context *context, int64_t in_features, int64_t out_features);
MPTRAIN_API mpt_module mpt_nn_relu(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_gelu(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_tanh(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_sigmoid(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_gelu_tanh(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_silu(mpt_context *context);
MPTRAIN_API mpt_module mpt_nn_leaky_relu(mpt_context *context, double slope);
MPTRAIN_API mpt_module mpt_nn_elu(mpt_context *context, double alpha);
MPTRAIN_API mpt_module mpt_nn_softplus(mpt_context *context, double beta, double threshold);
MPTRAIN_API mpt_module mpt_nn_hardtanh(mpt_context *context, double min, double max);
MPTRAIN_API mpt_module mpt_nn_dropout(mpt_context *context, double p);
MPTRAIN_API mpt_module mpt_nn_softmax(mpt_context *context, int dim);
MPTRAIN_API mpt_module mpt_nn_log_softmax(mpt_context *context, int dim);
MPTRAIN_API mpt_module mpt_nn_flatten(mpt_context *context); /* all but the first dimension */

static inline mpt_module mpt_module_end(void) {
    mpt_module end;
    end.context = NULL, end.slot = UINT32_MAX, end.generation = UINT32_MAX;
    return end;
}
/* Ends the list of mpt_sequential and mpt_nn_list. */
#define MPT_END mpt_module_end()
/* Children run in order; they are named "0", "1", ... At most 255 by the variadic form. */
MPTRAIN_API mpt_module mpt_sequential(mpt_context *context, ...);
MPTRAIN_API mpt_module mpt_sequential_array(
    mpt_context *context, const mpt_module *modules, int count);
/* A list only holds its children; mpt_child reaches them. */
MPTRAIN_API mpt_module mpt_nn_list(mpt_context *context, ...);
MPTRAIN_API mpt_module mpt_nn_list_array(
    mpt_context *context, const mpt_module *modules, int count);

/* How a parameter gets its first values. */
typedef enum mpt_init_kind {
    MPT_INIT_DEFAULT = 0, /* what PyTorch's layer of that name does */
    MPT_INIT_ZEROS,
    MPT_INIT_ONES,
    MPT_INIT_CONSTANT,        /* a */
    MPT_INIT_UNIFORM,         /* [a, b), in halves too */
    MPT_INIT_NORMAL,          /* mean a, deviation b */
    MPT_INIT_XAVIER_UNIFORM,  /* gain a */
    MPT_INIT_XAVIER_NORMAL,   /* gain a */
    MPT_INIT_KAIMING_UNIFORM, /* gain a, fan in */
    MPT_INIT_KAIMING_NORMAL   /* gain a, fan in */
} mpt_init_kind;
typedef struct mpt_init {
    mpt_init_kind kind;
    double a, b;
} mpt_init;
MPTRAIN_API mpt_init mpt_init_make(mpt_init_kind kind, double a, double b);
/* Before the first use: a recipe. After it: draws again at once. `name` is a parameter's path below
   `module`, or NULL for every parameter of two or more dimensions. */
MPTRAIN_API mpt_status mpt_set_init(mpt_module module, const char *name, mpt_init init);

/* User-defined modules. `forward` fills out[0..n_out) from in[0..n_in) with ops and children and
   returns MPT_OK. The class is copied, its strings are not; n_inputs or n_outputs 0: any number.
   Input and output names may be NULL. `destroy` runs when the module goes. */
typedef struct mpt_module_class {
    const char *name;
    mpt_status (*forward)(
        mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);
    void (*destroy)(void *user); /* may be NULL */
    const char *const *input_names;
    const char *const *output_names;
    int n_inputs, n_outputs;
} mpt_module_class;
MPTRAIN_API mpt_module mpt_module_create(
    mpt_context *context, const mpt_module_class *cls, void *user);
/* Before the first use of tree and child: build all of a net, then load weights of a part of it
   with mpt_load(mpt_child(net, "0"), ..). Names have 1 to 199 bytes without a dot and are copied. A
   child may be added in several places of one tree: it is shared. */
MPTRAIN_API mpt_status mpt_add_child(mpt_module module, const char *name, mpt_module child);
MPTRAIN_API mpt_status mpt_add_parameter(
    mpt_module module, const char *name, mpt_shape shape, mpt_init init);
/* Makes the parameter at `path` of a tree that is not yet in use the one at `source`, of the same
   shape: mpt_tie(net, "head.weight", "table.weight"). It counts, trains and is saved once, under
   the source's path, with the source's first values; mpt_parameter finds it under both. */
MPTRAIN_API mpt_status mpt_tie(mpt_module module, const char *path, const char *source);

/* A parameter's or child's handle by its path ("0.weight"). */
MPTRAIN_API mpt_tensor mpt_parameter(mpt_module module, const char *path);
MPTRAIN_API mpt_module mpt_child(mpt_module module, const char *path);
MPTRAIN_API int mpt_parameter_count(mpt_module module);     /* tensors; shared ones count once */
MPTRAIN_API int64_t mpt_parameter_numel(mpt_module module); /* elements */
/* Parameter number `index` in tree order; its path goes to `path`, cut to path_size bytes, the last
   one 0; no path takes more than 1280. */
MPTRAIN_API mpt_tensor mpt_parameter_at(mpt_module module, int index, char *path, size_t path_size);

/* A module and all below it in tree order, shared ones once: how many, and number `index`, from 0,
   which is the module itself, with its path below it as in mpt_parameter_at. */
MPTRAIN_API int mpt_module_count(mpt_module module); /* -1 on error */
MPTRAIN_API mpt_module mpt_module_at(mpt_module module, int index, char *path, size_t path_size);
/* "linear", or the name of a class of yours; valid as long as the module; "" on error. */
MPTRAIN_API const char *mpt_module_kind(mpt_module module);

/* Runs a module on one input for one output, or on n_in for n_out, in an array of its own. */
MPTRAIN_API mpt_tensor mpt_forward(mpt_module module, mpt_tensor x);
MPTRAIN_API mpt_status mpt_forward_n(
    mpt_module module, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);

/* Hooks: functions of yours at a module, one of each kind, put on at any time; NULL takes it off.
   The module then runs by itself: an activation behind it is no part of its launch. The forward
   hook is called behind each forward of the module with what that got and gave, and may put other
   tensors of any shape into out[0..n_out), with history or without. mpt_keep what is to outlive the
   step. Another status than MPT_OK is an error that names the module and ends the forward, and so
   is mpt_module_destroy in a hook. A list has no forward, so a hook on it is an error. So is
   recording a module with a hook, as recordings and captured steps run without the host; what was
   recorded before replays without it, and a captured step is recorded anew. mpt_copy_module and
   files leave hooks out. */
typedef mpt_status (*mpt_forward_hook)(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);
MPTRAIN_API mpt_status mpt_hook_forward(mpt_module module, mpt_forward_hook fn, void *user);
/* The backward hook is called in mpt_backward, for each forward that it was on in and the loss
   depends on, with the gradient of output number `output`, in that one's shape and dtype, a scaled
   loss's times the scale. It may put another one of that shape into *gradient, from which backward
   goes on into the module; changing the given one in place is an error. */
typedef mpt_status (*mpt_backward_hook)(
    mpt_module self, void *user, int output, mpt_tensor *gradient);
MPTRAIN_API mpt_status mpt_hook_backward(mpt_module module, mpt_backward_hook fn, void *user);
/* The hook that a module has, and in *user (may be NULL) what it was put on with, for code that
   puts its own on for a while and calls it; NULL where there is none. */
MPTRAIN_API mpt_forward_hook mpt_get_forward_hook(mpt_module module, void **user);
MPTRAIN_API mpt_backward_hook mpt_get_backward_hook(mpt_module module, void **user);

/* Training, which is the state after creation, or not, for a module and all below it: whether
   dropout is on, and batch norm takes the statistics of the batch. */
MPTRAIN_API mpt_status mpt_train(mpt_module module);
MPTRAIN_API mpt_status mpt_eval(mpt_module module);
MPTRAIN_API bool mpt_is_training(mpt_module module);
/* Freezes a module and all below it, or (false) unfreezes them: their parameters have and get no
   gradients (mpt_requires_grad), tied ones wherever they stand, so no optimizer changes them, and
   they are as in mpt_eval, whatever mpt_train says, which counts again once they are unfrozen.
   Before or after the tree is first used, and for optimizers made before or after. */
MPTRAIN_API mpt_status mpt_freeze(mpt_module module, bool on);
/* Fuses convolutions with the batch norms behind them, for inference: a pair becomes one launch, of
   weights that have the norm's scale in them, with the norm's relu and what it adds. x, an input of
   `module`, shows by a forward what follows what. Nothing of the net or its files changes: the
   folded weights, in fp32 or the dtype of autocast, are copies, made anew once parameters or
   statistics have changed. Forwards in evaluation between mpt_no_grad_begin or mpt_inference_begin
   (as in mpt_evaluate) and its end use them; training goes on as before. A forward in which other
   calls come between the two runs unfused. The result of a fused convolution is gone after the
   norm; mpt_keep before it keeps it, unfused. Numbers differ by roundings. Returns how many pairs,
   -1 on error; `text`, unless NULL, gets a line for each convolution: what it is fused with, or why
   not; it is cut to `size` bytes, the last one 0. Another call begins anew; mpt_unfuse ends it.
   arXiv:1712.05877, 3.2. */
MPTRAIN_API int64_t mpt_fuse(mpt_module module, mpt_tensor x, char *text, size_t size);
MPTRAIN_API mpt_status mpt_unfuse(mpt_module module);
/* A name, copied, that replaces the number of the tree in the key of its initial values. */
MPTRAIN_API mpt_status mpt_set_label(mpt_module root, const char *label);
/* Pure half: parameters become `dtype`; optimizers keep fp32 masters. A weight beyond the range of
   `dtype` is an error that names it, and nothing changes. Before any optimizer; averages
   and recordings of a tree that were made before have to be made anew. */
MPTRAIN_API mpt_status mpt_half(mpt_module module, mpt_dtype dtype);
/* fp8: the linear layers of a tree, before its first use, multiply fp8 numbers: x and weight as
   E4M3, which is what is saved for backward, gradients as E5M2, each times a scale; sums are fp32,
   results and gradients of the dtypes that they would have anyway, parameters stay as they are.
   Delayed scaling: a scale is the power of two that takes the largest finite magnitude of the last
   `history` steps to 448 (gradients: 57344) or below, less `margin` powers; it is 1 before the
   first step ends. What is finite saturates, NaN and infinities do not. Layers in mpt_eval leave
   their scales alone, mpt_step_end sets them. They are the layer's buffer "fp8_state" [3, 2 +
   history] of x, weight and gradient: scale, magnitude of the open step, history; files, copies and
   hashes have it. */
typedef struct mpt_fp8_config {
    int history; /* 16; 1 to 1024 steps */
    int margin;  /* 0 */
} mpt_fp8_config;
MPTRAIN_API mpt_fp8_config mpt_fp8_config_default(void);
MPTRAIN_API mpt_status mpt_fp8(mpt_module module, const mpt_fp8_config *config);
/* x, of fp32, fp16 or bf16, as MPT_F8E4M3 or MPT_F8E5M2, to nearest even. saturate: what is too
   large becomes the largest finite number, as in mpt_cast and CUDA's satfinite; else it becomes NaN
   (E4M3) or infinity (E5M2). PyTorch's casts saturate in E4M3 alone. Without history. */
MPTRAIN_API mpt_tensor mpt_cast_fp8(mpt_tensor x, mpt_dtype dtype, bool saturate);
/* LoRA (arXiv:2106.09685): adapters for linear layers, and for in_proj_weight of attention layers,
   whose path below `module` fits `pattern`, where one '*' stands for any text: "*" for all of them,
   "blocks.*", "*.out_proj". Such a layer gives x W^T + bias + alpha / rank * (x A^T) B^T; its two
   children "lora_A" [rank, in], drawn as a linear layer's weight is (Kaiming uniform, a = sqrt 5),
   and "lora_B" [out, rank], zeros, have a "weight" each, as in files of peft: at first it gives
   what it gave. An activation behind it is no part of its launch. All other parameters of `module`
   get no gradients from now on, their layers keep nothing for them, and an optimizer made of a
   module leaves them out; each part is in the mode that it is in, and mpt_freeze(part, false)
   trains it in full. A layer that stands in several places has one pair of adapters. Weights are
   loaded before, or with strict = false. An error, which changes nothing: that no layer fits, a
   rank below 1, an alpha that is not above 0, a layer that is adapted already, computes in fp8, or
   whose weight is tied or borrowed, and an optimizer that has a parameter of `module` besides those
   of adapters. Averages are made behind it. */
MPTRAIN_API mpt_status mpt_lora(mpt_module module, const char *pattern, int rank, double alpha);
/* Ends all adapters below `module`, so that it is trained in full again, but for what mpt_freeze
   says: merge adds alpha / rank * B A to their weights, in fp32, rounded once to halves; remove
   does not. An optimizer that has them is destroyed before. A weight that would not be finite in
   its dtype is an error that names it, and nothing changes. */
MPTRAIN_API mpt_status mpt_lora_merge(mpt_module module);
MPTRAIN_API mpt_status mpt_lora_remove(mpt_module module);
/* Inside autocast, this module and its children run in `dtype`. MPT_F32: casting is off, and what
   comes in half meets the fp32 weights in fp32. */
MPTRAIN_API mpt_status mpt_set_dtype_policy(mpt_module module, mpt_dtype dtype);
/* From now on forwards of the module are run again by backward, as by mpt_recompute_call: with
   parts = 1 as a whole, of mpt_sequential also in more parts of about as many children each, of
   which backward holds one at a time: with n equal children about sqrt(n) parts take least memory.
   0: no more. Modules may lie in each other. Hooks in it, too, are called again. */
MPTRAIN_API mpt_status mpt_recompute_module(mpt_module module, int parts);
/* Has backward run again as few modules of the net as it takes for a training to get along with
   `budget` bytes from the allocator: of those below it whose path fits `pattern` (as of mpt_lora;
   "encoder.layers.*"), of which none lies in another, the first ones, which are held longest.
   Returns how many, found by dry runs: `train` is what mpt_plan takes, for the context's own
   configuration, and makes an optimizer of a net of its own like this one, which is marked then;
   called in it, this does nothing and returns 0.
   -1 on an error, which changes nothing: nothing fits the pattern, or all are not enough. */
MPTRAIN_API int64_t mpt_recompute_to_fit(mpt_module net, const char *pattern, mpt_plan_fn train,
    int64_t batch, void *user, int64_t budget);
/* Table of modules, shapes, parameters and bytes; returns the length it needs. */
MPTRAIN_API size_t mpt_summary(mpt_module module, char *text, size_t size);
/* Copies the values of parameters, converting dtypes, and of buffers, between trees whose
   parameters have the same shapes in the same order, also between contexts. */
MPTRAIN_API mpt_status mpt_copy_module(mpt_module destination, mpt_module source);
/* One copy of the weights for inference from several threads: `borrower`, in another context on the
   same device, takes the parameters and buffers of `lender`, whose paths, shapes and dtypes have to
   be its own, in place of those that it has, whose memory goes. The first difference is an error
   that names it. Call it where no other thread uses either context and no step is open; then each
   context is its thread's again. The borrower is frozen and read only, from the first call on:
   mpt_train, unfreezing, an optimizer, a load, mpt_half or anything else that would change its
   values is an error. So is changing the lender's (a step, a load, an op in place, statistics of a
   batch, mpt_restore) as long as a borrower is there; of a lender that is part of a tree, the
   parameters beside it, too. Borrowers may lend, and borrow anew from another lender. Either may be
   destroyed first: the memory, which mpt_memory counts for the lender alone, goes back to the
   lender's allocator with the last of them, on that one's thread. Half copies of autocast and
   weights folded by mpt_fuse are each context's own; mpt_half before makes halves shared. Averages
   and recordings of the borrower that were made before have to be made anew. */
MPTRAIN_API mpt_status mpt_share_module(mpt_module borrower, mpt_module lender);
/* Destroys a tree that is not part of another one, with its parameters; children that another tree
   holds stay. An error while an optimizer holds one of them. */
MPTRAIN_API mpt_status mpt_module_destroy(mpt_module root);
/* A 64-bit hash over names, shapes, dtypes and bits of all parameters and buffers. */
MPTRAIN_API uint64_t mpt_module_hash(mpt_module module);

/* User-defined ops: forward and backward as compositions of ops, run without history. In forward,
   read inputs, set outputs, save what backward needs; in backward, read saved tensors and output
   gradients, set input gradients (null handle = none). */
typedef struct mpt_op_call mpt_op_call;
typedef enum mpt_autocast_class {
    MPT_AUTOCAST_INPUT = 0, /* runs in its inputs' dtype */
    MPT_AUTOCAST_LOW,
    MPT_AUTOCAST_FP32
} mpt_autocast_class;
typedef struct mpt_op_class {
    const char *name;
    mpt_autocast_class autocast;
    mpt_status (*forward)(mpt_op_call *call, void *user);
    mpt_status (*backward)(mpt_op_call *call, void *user); /* NULL: not differentiable */
    int n_inputs, n_outputs;
} mpt_op_class;
/* 1 to 8 inputs, 1 to 4 outputs; the class is copied, its name is not. Lives until mpt_destroy. */
MPTRAIN_API mpt_op mpt_op_register(mpt_context *context, const mpt_op_class *cls, void *user);
MPTRAIN_API mpt_status mpt_op_apply(
    mpt_op op, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);
MPTRAIN_API mpt_tensor mpt_op_input(mpt_op_call *call, int index);
MPTRAIN_API mpt_status mpt_op_set_output(mpt_op_call *call, int index, mpt_tensor value);
MPTRAIN_API mpt_status mpt_op_save(mpt_op_call *call, int index, mpt_tensor value); /* 0..7 */
MPTRAIN_API mpt_tensor mpt_op_saved(mpt_op_call *call, int index);
/* In backward; of an output that the loss does not depend on, zeros of its shape and dtype. */
MPTRAIN_API mpt_tensor mpt_op_output_grad(mpt_op_call *call, int index);
MPTRAIN_API mpt_status mpt_op_set_input_grad(mpt_op_call *call, int index, mpt_tensor gradient);
/* For CUDA kernels of your own, in forward and backward of an op or wherever tensors are: the place
   of a contiguous tensor's elements in the GPU's memory, and the stream, a cudaStream_t, that the
   library queues its launches on, whose GPU becomes that of the calling thread. A kernel launched
   on that stream finds done what was called before it, and later calls find done what it does; work
   on another stream has to wait for this one, and this one for it (cudaStreamWaitEvent). `writes`:
   the kernel may change the tensor, and what backward saved of its old value is gone, as with ops
   in place. A place holds as long as its tensor. NULL and an error on the CPU, in builds without
   MPTRAIN_CUDA, in recordings and captured steps, which could not repeat the kernel, and of a
   tensor that is not contiguous (mpt_contiguous): launch nothing then. What a launch in an op's
   function leaves as CUDA's last error becomes the error of that op. Anomaly mode passes over steps
   with such kernels. */
MPTRAIN_API void *mpt_device_data(mpt_tensor tensor, bool writes);
MPTRAIN_API void *mpt_device_stream(mpt_context *context);

/* ==== Optimizers ============================================================================= */

typedef struct mpt_sgd_config {
    double lr;           /* 1e-3 */
    double momentum;     /* 0 */
    double dampening;    /* 0 */
    double weight_decay; /* 0, added to the gradient */
    bool nesterov;       /* false; needs momentum > 0 and dampening 0 */
    bool allow_shared;   /* false; true: parameters may be in another optimizer too */
    bool maximize;       /* false; true: up the gradient */
    /* false; true: parameters, which must be bf16 (mpt_half), have no fp32 masters; an update is
       rounded to one of the two nearest bf16 numbers by chance, so that small ones are not lost */
    bool stochastic_rounding;
    int state_bits; /* 32, also for 0; 8: moments take a quarter of the memory, see below */
} mpt_sgd_config;
typedef struct mpt_adam_config {
    double lr;                /* 1e-3 */
    double beta1, beta2;      /* 0.9, 0.999 */
    double eps;               /* 1e-8, outside the root, after bias correction */
    double weight_decay;      /* Adam: 0, added to the gradient; AdamW: 1e-2, decoupled */
    bool allow_shared;        /* false */
    bool amsgrad;             /* false; true: with the largest second moment so far */
    bool maximize;            /* false */
    bool stochastic_rounding; /* false; see mpt_sgd_config, as in all that follow */
    int state_bits;           /* 32; likewise */
} mpt_adam_config;
typedef mpt_adam_config mpt_adamw_config;
typedef struct mpt_rmsprop_config {
    double lr;           /* 1e-2 */
    double alpha;        /* 0.99, of the mean square */
    double eps;          /* 1e-8, outside the root */
    double weight_decay; /* 0, added to the gradient */
    double momentum;     /* 0 */
    bool centered;       /* false; true: the square of the mean is taken off */
    bool allow_shared, maximize, stochastic_rounding;
    int state_bits; /* 32; 8 not where centered */
} mpt_rmsprop_config;
typedef struct mpt_adagrad_config {
    double lr;                  /* 1e-2 */
    double lr_decay;            /* 0; lr / (1 + steps lr_decay) */
    double weight_decay;        /* 0, added to the gradient */
    double initial_accumulator; /* 0; what sums of squares start from */
    double eps;                 /* 1e-10, outside the root */
    bool allow_shared, maximize, stochastic_rounding;
} mpt_adagrad_config;
typedef struct mpt_adadelta_config {
    double lr;           /* 1 */
    double rho;          /* 0.9, of both means */
    double eps;          /* 1e-6, inside the roots */
    double weight_decay; /* 0, added to the gradient */
    bool allow_shared, maximize, stochastic_rounding;
} mpt_adadelta_config;
typedef struct mpt_lion_config {
    double lr;           /* 1e-4 */
    double beta1, beta2; /* 0.9 of the step, 0.99 of what is kept */
    double weight_decay; /* 0, decoupled */
    bool allow_shared, maximize, stochastic_rounding;
    int state_bits; /* 32 */
} mpt_lion_config;

/* The values that the comments above give. */
MPTRAIN_API mpt_sgd_config mpt_sgd_config_default(void);
MPTRAIN_API mpt_adam_config mpt_adam_config_default(void);
MPTRAIN_API mpt_adamw_config mpt_adamw_config_default(void);
MPTRAIN_API mpt_rmsprop_config mpt_rmsprop_config_default(void);
MPTRAIN_API mpt_adagrad_config mpt_adagrad_config_default(void);
MPTRAIN_API mpt_adadelta_config mpt_adadelta_config_default(void);
MPTRAIN_API mpt_lion_config mpt_lion_config_default(void);
/* Over all parameters of a tree. Order of operations as in torch.optim (SGD and Adam: its fused
   form), of Lion as in arXiv 2302.06675; moments and arithmetic are fp32, half parameters get fp32
   masters unless stochastic_rounding is set, steps count in 64 bits.
   state_bits = 8 (arXiv 2110.02861): between steps, moments of parameters of 4,096 or more elements
   are codes of a byte, the nearest ones, 0 for 0 alone, in blocks of 256 that have their largest
   magnitude; all else is as with 32. A moment that is not finite makes its block NaN. Checkpoints
   fit the same state_bits: <moment> is u8 there, <moment>.absmax f32. */
MPTRAIN_API mpt_optimizer mpt_sgd(mpt_module module, const mpt_sgd_config *config);
MPTRAIN_API mpt_optimizer mpt_adam(mpt_module module, const mpt_adam_config *config);
MPTRAIN_API mpt_optimizer mpt_adamw(mpt_module module, const mpt_adamw_config *config);
MPTRAIN_API mpt_optimizer mpt_rmsprop(mpt_module module, const mpt_rmsprop_config *config);
MPTRAIN_API mpt_optimizer mpt_adagrad(mpt_module module, const mpt_adagrad_config *config);
MPTRAIN_API mpt_optimizer mpt_adadelta(mpt_module module, const mpt_adadelta_config *config);
MPTRAIN_API mpt_optimizer mpt_lion(mpt_module module, const mpt_lion_config *config);

/* An optimizer of your own. mpt_step, or mpt_scaler_step, calls `update` once for each parameter
   that has a gradient, with tensors that are copies, all fp32 and of the parameter's shape; what it
   leaves in `value` and `state` becomes the parameter, in its dtype, and its state. It is made of
   ops, runs without history and autocast, and changes tensors in place: mpt_add_, mpt_copy_,
   mpt_write. Its own tensors end with it. A status other than MPT_OK, or an error in it, is an
   error of the step, which then changes nothing at all, as a step does that the scaler skips.
   mpt_step, mpt_backward, mpt_optimizer_add and mpt_optimizer_destroy are refused in it. Groups,
   schedules, clipping and checkpoints are as for all optimizers; half parameters have fp32 masters.
   A step waits for the device; captured steps and recordings refuse it. */
enum { MPT_MAX_STATES = 3 };
typedef struct mpt_user_update {
    mpt_tensor value;                 /* the parameter, or the master of a half one */
    mpt_tensor gradient;              /* unscaled and clipped */
    mpt_tensor state[MPT_MAX_STATES]; /* 0 at first; behind the last one null handles */
    int64_t step;                     /* of this parameter, from 1 */
    double lr, weight_decay;          /* of its group; nothing has been decayed */
    int group;
    const char *path; /* "0.weight" */
} mpt_user_update;
typedef struct mpt_user_optimizer_config {
    mpt_status (*update)(mpt_context *context, const mpt_user_update *parameter, void *user);
    void *user;
    double lr;           /* 1e-3 */
    double weight_decay; /* 0 */
    int states;          /* 0, up to MPT_MAX_STATES: tensors that the optimizer keeps for each */
    /* In checkpoints, of 1 to 31 letters, digits and underscores, copied; NULL: "state0" .. */
    const char *state_names[MPT_MAX_STATES];
    bool allow_shared; /* false */
} mpt_user_optimizer_config;
MPTRAIN_API mpt_user_optimizer_config mpt_user_optimizer_config_default(void);
MPTRAIN_API mpt_optimizer mpt_user_optimizer(
    mpt_module module, const mpt_user_optimizer_config *config);

/* L-BFGS, as torch.optim.LBFGS: for problems of one batch, with few parameters. All of them are one
   vector; what it remembers, 2 history_size + 8 such vectors of fp32, lies in host memory, and sums
   are double. There is one group: mpt_optimizer_add is refused. */
typedef struct mpt_lbfgs_config {
    double lr;               /* 1: length of a step, or where its line search begins */
    int max_iter;            /* 20 iterations in a step */
    int max_eval;            /* 0: max_iter 5 / 4; evaluations after which no iteration begins */
    double tolerance_grad;   /* 1e-7: ends where no gradient is larger */
    double tolerance_change; /* 1e-9: ends where values or loss change by less */
    int history_size;        /* 100 steps, 1 to 10000 */
    bool strong_wolfe;       /* false; true: a line search to the strong Wolfe conditions */
    bool allow_shared;       /* false */
} mpt_lbfgs_config;
MPTRAIN_API mpt_lbfgs_config mpt_lbfgs_config_default(void);
MPTRAIN_API mpt_optimizer mpt_lbfgs(mpt_module module, const mpt_lbfgs_config *config);
/* Computes the loss of the parameters as they are, calls mpt_backward on it, and returns it, one
   element. Gradients are cleared before each call; tensors that it makes end with it. */
typedef mpt_tensor (*mpt_closure)(mpt_context *context, void *user);
/* Up to max_iter iterations, each with one call of the closure or, in a line search, up to 26. In
   place of mpt_step, which is refused, in a step or outside. Returns the loss of the first call,
   NaN on error: then parameters are as they were, and the history begins anew. A loss that is not
   finite is an error; a line search goes back from it instead, unless it is the first. Waits for
   the device. */
MPTRAIN_API double mpt_lbfgs_step(mpt_optimizer optimizer, mpt_closure closure, void *user);

/* Muon, as torch.optim.Muon, for the matrices of hidden layers: each moves by its momentum, made
   orthogonal by Newton-Schulz iterations (https://kellerjordan.github.io/posts/muon). The other
   parameters, of 1 dimension or more than 2, tables of embeddings and what `adamw_names` has,
   AdamW updates in the same step: those of an output layer should be among them. Matrices are group
   0, the others group 1; what mpt_optimizer_add moves stays with whom it was, and all of a group
   has to be of one kind. Options are momentum in groups of matrices, those of AdamW in others. An
   error where no matrix is left. Momentum buffer and products are fp32, so that results do not
   depend on what a CPU has for bf16; with `bf16` what is multiplied is rounded, as in PyTorch. */
typedef enum mpt_muon_adjust {
    MPT_MUON_ORIGINAL,       /* matrix [m, n]: lr sqrt(max(1, m / n)) */
    MPT_MUON_MATCH_RMS_ADAMW /* lr 0.2 sqrt(max(m, n)): steps as large as those of AdamW */
} mpt_muon_adjust;
typedef struct mpt_muon_config {
    double lr;               /* 1e-3 */
    double weight_decay;     /* 0.1, decoupled */
    double momentum;         /* 0.95 */
    double eps;              /* 1e-7: the least norm that a matrix is divided by */
    int ns_steps;            /* 5 iterations, 1 to 20 */
    mpt_muon_adjust adjust;  /* MPT_MUON_ORIGINAL */
    bool nesterov;           /* true */
    bool bf16;               /* false */
    const char *adamw_names; /* NULL; "head, 3.weight": paths of modules or parameters */
    mpt_adamw_config adamw;  /* its lr, betas, eps and weight_decay: those of the others */
    bool allow_shared, maximize, stochastic_rounding; /* of all parameters */
} mpt_muon_config;
MPTRAIN_API mpt_muon_config mpt_muon_config_default(void);
MPTRAIN_API mpt_optimizer mpt_muon(mpt_module module, const mpt_muon_config *config);

/* Parameter groups. Group 0 holds what the creator got; mpt_optimizer_add makes another one of the
   module's parameters (those already held move there), with its own lr and decay: all below
   `module`, or the one at path `parameter` if that is not NULL. */
typedef struct mpt_group_config {
    double lr; /* absolute */
    double weight_decay;
} mpt_group_config;
MPTRAIN_API int mpt_optimizer_add(mpt_optimizer optimizer, mpt_module module, const char *parameter,
    const mpt_group_config *config); /* group index, -1 on error */
MPTRAIN_API int mpt_optimizer_groups(mpt_optimizer optimizer);
MPTRAIN_API mpt_status mpt_set_lr(
    mpt_optimizer optimizer, int group, double lr); /* -1: all groups */
/* That of the next step; NaN on error. May wait for the device. */
MPTRAIN_API double mpt_get_lr(mpt_optimizer optimizer, int group);

/* What else a group has of its own, by the name that it has in the config: "weight_decay",
   "momentum", "beta1", "eps" and so on. Captured steps are then recorded anew; recordings keep what
   they were made with. NaN on error. */
MPTRAIN_API mpt_status mpt_set_option(
    mpt_optimizer optimizer, int group, const char *name, double value);
MPTRAIN_API double mpt_get_option(mpt_optimizer optimizer, int group, const char *name);

/* Gradients to none: parameters without a new gradient are then left alone by the step. */
MPTRAIN_API mpt_status mpt_zero_grad(mpt_optimizer optimizer);
/* Multiplies the gradients so that their joint 2-norm is at most max_norm; returns the norm before,
   0-d fp32, without a wait. After mpt_unscale if there is a scaler: scaled gradients are refused,
   as by mpt_grad_norm and mpt_clip_grad_value. An infinite or NaN norm is an error, found as a bad
   target is, and weights stay, unless the scaler skips that step. */
MPTRAIN_API mpt_tensor mpt_clip_grad_norm(mpt_optimizer optimizer, double max_norm);
/* The same by the p-norm: p is 1, 2 or INFINITY, the largest magnitude. */
MPTRAIN_API mpt_tensor mpt_clip_grad_norm_p(mpt_optimizer optimizer, double max_norm, double p);
/* false: such a norm is no error; gradients become 0 or NaN, and the log hears once of a step that
   takes them. true, as at first: see above. As error_if_nonfinite in PyTorch, where it is false.
   mpt_fit, which looks at each epoch's loss, does without the error. */
MPTRAIN_API mpt_status mpt_error_if_nonfinite(mpt_optimizer optimizer, bool on);
/* That norm alone, 0-d fp32, without a wait; the gradients stay as they are. */
MPTRAIN_API mpt_tensor mpt_grad_norm(mpt_optimizer optimizer, double p);
/* Cuts every gradient to [-limit, limit]. */
MPTRAIN_API mpt_status mpt_clip_grad_value(mpt_optimizer optimizer, double limit);
/* Updates the parameters that have a gradient. With a scaler call mpt_scaler_step instead: of
   scaled gradients it takes none. The log hears of gradients that nobody clears. */
MPTRAIN_API mpt_status mpt_step(mpt_optimizer optimizer);
/* true: each parameter is updated inside mpt_backward as soon as its gradient is whole, which then
   goes: gradients take the memory of a few layers, not of all, if this is so from the first
   backward on. The values are those of mpt_step, to the bit; mpt_step, which still ends the step,
   has nothing left to do. What needs all gradients first is an error, and nothing changes: a scaled
   loss, clipping, norms, gradients summed over several passes, retained graphs, captured and
   recorded steps, L-BFGS, Muon, optimizers of your own, parameters in two optimizers. Memory that
   is out in the midst of backward leaves some layers updated, others not; the log says so. Not in
   builds with MPTRAIN_NO_FRUGAL. As PyTorch's tutorial "optimizer_step_in_backward" does it. */
MPTRAIN_API mpt_status mpt_update_in_backward(mpt_optimizer optimizer, bool on);
/* Steps that were really applied so far (skipped ones do not count); -1 on error. Waits. */
MPTRAIN_API int64_t mpt_applied_steps(mpt_optimizer optimizer);
MPTRAIN_API uint64_t mpt_optimizer_hash(mpt_optimizer optimizer); /* moments, masters, counters */
MPTRAIN_API mpt_status mpt_optimizer_destroy(mpt_optimizer optimizer);

/* Schedules. Per step they are indexed on the device by the count of applied steps; per epoch they
   move when mpt_schedule_step is called. One schedule per optimizer. A group's rate goes through it
   from the lr that it was given, called base here; t counts from 0. */
typedef enum mpt_schedule_unit { MPT_PER_STEP = 0, MPT_PER_EPOCH } mpt_schedule_unit;
enum { MPT_MAX_RATES = 8, MPT_MAX_MILESTONES = 16 };
/* A curve over t, a value to be made by one of the functions below, which are named after those of
   torch.optim.lr_scheduler; bad arguments are told where a schedule is made of it. */
typedef struct mpt_rate {
    int kind;
    int64_t count[2];
    double number[3];
    int64_t milestone[MPT_MAX_MILESTONES];
} mpt_rate;
MPTRAIN_API mpt_rate mpt_constant_lr(double factor, int64_t total); /* base factor, then base */
MPTRAIN_API mpt_rate mpt_linear_lr(double start, double end, int64_t total); /* factors of base */
MPTRAIN_API mpt_rate mpt_exponential_lr(double gamma);                       /* base gamma^t */
MPTRAIN_API mpt_rate mpt_step_lr(int64_t size, double gamma); /* base gamma^floor(t / size) */
/* base gamma^(milestones <= t); up to MPT_MAX_MILESTONES of them, rising. */
MPTRAIN_API mpt_rate mpt_multi_step_lr(const int64_t *milestones, int count, double gamma);
/* base (1 - min(t, total) / total)^power */
MPTRAIN_API mpt_rate mpt_polynomial_lr(int64_t total, double power);
/* eta_min + (base - eta_min)(1 + cos(pi t / t_max)) / 2 */
MPTRAIN_API mpt_rate mpt_cosine_lr(int64_t t_max, double eta_min);
/* The half wave from base to eta_min over and over, t_0 long at first, then each mult times as long
   as the one before. */
MPTRAIN_API mpt_rate mpt_cosine_restarts_lr(int64_t t_0, int64_t mult, double eta_min);

/* Sets the optimizer's rates by such a curve, from the rates that they have now. */
MPTRAIN_API mpt_schedule mpt_schedule_create(
    mpt_optimizer optimizer, mpt_rate rate, mpt_schedule_unit unit);
/* Up to MPT_MAX_RATES curves one after the other: number k + 1 begins, with t = 0 again, at
   milestones[k] of count - 1 rising ones. */
MPTRAIN_API mpt_schedule mpt_sequential_lr(mpt_optimizer optimizer, const mpt_rate *rates,
    int count, const int64_t *milestones, mpt_schedule_unit unit);
/* All curves at once: base times the product of their factors; eta_min has to be 0. */
MPTRAIN_API mpt_schedule mpt_chained_lr(
    mpt_optimizer optimizer, const mpt_rate *rates, int count, mpt_schedule_unit unit);
/* The schedule of mpt_cosine_lr. */
MPTRAIN_API mpt_schedule mpt_cosine_annealing(
    mpt_optimizer optimizer, int64_t t_max, double eta_min, mpt_schedule_unit unit);
/* mpt_linear_lr from base start to base over `warmup`, then, if t_max > warmup, mpt_cosine_lr to
   eta_min over the remaining t_max - warmup. */
MPTRAIN_API mpt_schedule mpt_warmup(mpt_optimizer optimizer, double start, int64_t warmup,
    int64_t t_max, double eta_min, mpt_schedule_unit unit);

/* Up from max_lr / div_factor to max_lr and down to the start over final_div_factor; momentum (SGD,
   RMSprop) or beta1 (Adam, Lion) the other way. The device reads both from its table, so recorded
   and captured steps go on with it. After the last step all stays as it is there. */
typedef struct mpt_one_cycle_config {
    double max_lr;                       /* 0: the lr that each group has */
    int64_t total;                       /* steps or epochs; to be set */
    double pct_start;                    /* 0.3; part of the cycle that rises */
    double div_factor, final_div_factor; /* 25, 1e4 */
    bool linear;                         /* false: cosine */
    bool three_phase;                    /* false; true: down to the start, then further */
    bool cycle_momentum;                 /* true */
    double base_momentum, max_momentum;  /* 0.85, 0.95 */
} mpt_one_cycle_config;
MPTRAIN_API mpt_one_cycle_config mpt_one_cycle_config_default(void);
MPTRAIN_API mpt_schedule mpt_one_cycle(
    mpt_optimizer optimizer, const mpt_one_cycle_config *config, mpt_schedule_unit unit);

/* Cuts the rates when a metric no longer gets better. It moves by mpt_schedule_metric alone. */
typedef struct mpt_plateau_config {
    double factor;      /* 0.1; in [0, 1) */
    int64_t patience;   /* 10; values that may be no better before a cut */
    double threshold;   /* 1e-4; less is no better */
    bool absolute;      /* false: the threshold is relative to the best value */
    bool maximize;      /* false: less is better */
    int64_t cooldown;   /* 0; values after a cut that do not count */
    double min_lr, eps; /* 0, 1e-8: a cut by no more than eps is none */
} mpt_plateau_config;
MPTRAIN_API mpt_plateau_config mpt_plateau_config_default(void);
MPTRAIN_API mpt_schedule mpt_reduce_on_plateau(
    mpt_optimizer optimizer, const mpt_plateau_config *config);
/* A new value of the metric, as a rule once per epoch; NaN is no better than any. mpt_fit gives the
   validation loss, or the training loss where there is none. */
MPTRAIN_API mpt_status mpt_schedule_metric(mpt_schedule schedule, double value);
/* Ends an epoch; a schedule per step needs no call. */
MPTRAIN_API mpt_status mpt_schedule_step(mpt_schedule schedule);

/* Where a schedule stands; with it, and the lr of the groups, a new one goes on from there. */
typedef struct mpt_schedule_state {
    int64_t time; /* applied steps, epochs ended, metrics seen */
    double best;  /* the rest is of plateaus: the best metric; */
    int64_t bad;  /* how many since were no better; */
    int64_t cooldown;
} mpt_schedule_state;
MPTRAIN_API mpt_schedule_state mpt_schedule_get_state(mpt_schedule schedule); /* may wait */
MPTRAIN_API mpt_status mpt_schedule_set_state(
    mpt_schedule schedule, const mpt_schedule_state *state);
MPTRAIN_API mpt_status mpt_schedule_destroy(mpt_schedule schedule); /* the rates stay */

/* Averages of a module's parameters over the steps of an optimizer, fp32, as
   torch.optim.swa_utils.AveragedModel keeps them: the first update copies. */
typedef struct mpt_ema_config {
    double decay; /* 0.999; in [0, 1): average = decay average + (1 - decay) value */
    bool warmup;  /* false; true: min(decay, (1 + n) / (10 + n)) at update n */
    bool equal;   /* false; true: all updates have the same weight (SWA), whatever decay is */
} mpt_ema_config;
MPTRAIN_API mpt_ema_config mpt_ema_config_default(void);
MPTRAIN_API mpt_ema mpt_ema_create(
    mpt_module module, mpt_optimizer optimizer, const mpt_ema_config *config);
/* After the optimizer's step, or at the end of an epoch. Queued; where no step was applied since
   the last update, because it was skipped or failed, nothing moves. */
MPTRAIN_API mpt_status mpt_ema_update(mpt_ema ema);
/* The module gets the averages for its values until mpt_ema_restore gives back the bits it had: to
   evaluate or save it, or for mpt_copy_module to another one. No step meanwhile. */
MPTRAIN_API mpt_status mpt_ema_apply(mpt_ema ema);
MPTRAIN_API mpt_status mpt_ema_restore(mpt_ema ema);
MPTRAIN_API uint64_t mpt_ema_hash(mpt_ema ema); /* averages and counts */
MPTRAIN_API mpt_status mpt_ema_destroy(mpt_ema ema);

/* ==== Gradient scaler ======================================================================== */

typedef struct mpt_scaler_config {
    double init_scale;       /* 65536 */
    double growth_factor;    /* 2; > 1 */
    double backoff_factor;   /* 0.5; in (0, 1) */
    int64_t growth_interval; /* 2000 clean steps; >= 1 */
    double min_scale;        /* 1: the floor; 0 = none */
    double max_scale;        /* 2^24: the ceiling; 0 = none */
    bool enabled;            /* true; false: every call passes through */
    bool fixed;              /* false; true: static loss scaling, overflow still skips */
    int64_t patience;        /* 100 skips in a row end in an error with a diagnosis; 0 = never */
    int64_t window; /* 1000 steps: skip rates of successive windows are compared; 0 = never */
} mpt_scaler_config;
MPTRAIN_API mpt_scaler_config mpt_scaler_config_default(void);
MPTRAIN_API mpt_scaler mpt_grad_scaler(mpt_context *context, const mpt_scaler_config *config);
/* loss * scale, fp32; loss itself if the scaler is not enabled. */
MPTRAIN_API mpt_tensor mpt_scale_loss(mpt_scaler scaler, mpt_tensor loss);
/* Divides the optimizer's gradients by the scale and looks for non-finite values, before and after.
   Once per optimizer and update. No wait. */
MPTRAIN_API mpt_status mpt_unscale(mpt_scaler scaler, mpt_optimizer optimizer);
/* mpt_unscale if it has not been called, then the optimizer's step unless a gradient was
   non-finite. Queued; mpt_step_outcome tells. */
MPTRAIN_API mpt_status mpt_scaler_step(mpt_scaler scaler, mpt_optimizer optimizer);
/* Leaves this optimizer out of the current update on purpose. */
MPTRAIN_API mpt_status mpt_scaler_skip(mpt_scaler scaler, mpt_optimizer optimizer);
/* Grows or backs off the scale; once per iteration, after every optimizer's step. */
MPTRAIN_API mpt_status mpt_scaler_update(mpt_scaler scaler);

typedef enum mpt_outcome {
    MPT_OUTCOME_NONE = 0,
    MPT_OUTCOME_APPLIED,
    MPT_OUTCOME_SKIPPED
} mpt_outcome;
typedef struct mpt_scaler_stats {
    double scale;
    int64_t growth_tracker; /* clean steps since the last change */
    int64_t steps, skipped; /* updates with at least one optimizer step; of those, skipped */
    int64_t skipped_in_a_row;
    int64_t last_skipped_step; /* counted from 1; 0 = never */
} mpt_scaler_stats;
/* What became of the last update's step. Waits for the device. */
MPTRAIN_API mpt_outcome mpt_step_outcome(mpt_scaler scaler);
MPTRAIN_API double mpt_get_scale(mpt_scaler scaler);                   /* waits for the device */
MPTRAIN_API mpt_status mpt_set_scale(mpt_scaler scaler, double scale); /* keeps the tracker */
/* The numbers as of the last finished update; does not wait. */
MPTRAIN_API mpt_scaler_stats mpt_scaler_statistics(mpt_scaler scaler);
MPTRAIN_API mpt_scaler_config mpt_scaler_get_config(mpt_scaler scaler);
MPTRAIN_API mpt_status mpt_scaler_destroy(mpt_scaler scaler);

/* Plain state of a scaler, as in GradScaler.state_dict(); the scale of a disabled one is 1. */
typedef struct mpt_scaler_state {
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
} mpt_scaler_state;
MPTRAIN_API mpt_scaler_state mpt_scaler_get_state(mpt_scaler scaler);
MPTRAIN_API mpt_status mpt_scaler_set_state(mpt_scaler scaler, const mpt_scaler_state *state);

/* ==== Data =================================================================================== */

typedef enum mpt_split { MPT_TRAIN = 0, MPT_TEST } mpt_split;

/* Samples in memory: `count` inputs of `shape` and `dtype` one after the other, and as many targets
   (i64 class numbers, or float tensors). With copy = false the caller keeps both alive. */
typedef struct mpt_memory_dataset_config {
    int64_t count;
    mpt_dtype dtype; /* MPT_F32 */
    mpt_shape shape; /* MPT_SCALAR */
    const void *inputs;
    mpt_dtype target_dtype; /* MPT_I64 */
    mpt_shape target_shape; /* MPT_SCALAR */
    const void *targets;
    bool copy; /* true */
} mpt_memory_dataset_config;
MPTRAIN_API mpt_memory_dataset_config mpt_memory_dataset_config_default(void);
MPTRAIN_API mpt_dataset mpt_memory_dataset(
    mpt_context *context, const mpt_memory_dataset_config *config);
/* MNIST from a directory with the four idx files, plain or .gz, under their usual names. u8 inputs
   [1, 28, 28], delivered as value / 255. */
MPTRAIN_API mpt_dataset mpt_mnist(mpt_context *context, const char *directory, mpt_split split);
/* Any pair of idx files; targets_path may be NULL. */
MPTRAIN_API mpt_dataset mpt_idx(
    mpt_context *context, const char *inputs_path, const char *targets_path);
/* Samples from a callback, which loader workers run side by side: it fills `input` and `target`
   (sizes as declared; NULL without a target_dtype) for sample `index`, or returns false with a
   message in `error`. `seed` differs by sample and epoch, and not by worker. */
typedef struct mpt_user_dataset_config {
    int64_t count;
    mpt_dtype dtype;
    mpt_shape shape;
    mpt_dtype target_dtype;
    mpt_shape target_shape;
    bool (*sample)(void *user, int64_t index, uint64_t seed, void *input, void *target, char *error,
        size_t error_size);
    void *user;
} mpt_user_dataset_config;
MPTRAIN_API mpt_dataset mpt_user_dataset(
    mpt_context *context, const mpt_user_dataset_config *config);

MPTRAIN_API int64_t mpt_dataset_size(mpt_dataset dataset);    /* -1 on error */
MPTRAIN_API mpt_shape mpt_dataset_shape(mpt_dataset dataset); /* of an input; rank -1 on error */
/* The name of a class number; NULL past the last one, or if classes have no names. */
MPTRAIN_API const char *mpt_class_name(mpt_dataset dataset, int64_t index);
/* (value - mean) / deviation on delivery, u8 inputs after division by 255. */
MPTRAIN_API mpt_status mpt_normalize(mpt_dataset dataset, double mean, double deviation);
/* Mean and deviation over all elements, as delivered without normalisation. */
MPTRAIN_API mpt_status mpt_dataset_statistics(mpt_dataset dataset, double *mean, double *deviation);
/* Samples [first, first + count) as a dataset of their own. */
MPTRAIN_API mpt_dataset mpt_subset(mpt_dataset dataset, int64_t first, int64_t count);
/* Deals all samples out by a seeded permutation; fractions sum to 1; parts[] gets n datasets. */
MPTRAIN_API mpt_status mpt_random_split(
    mpt_dataset dataset, const double *fractions, int n, uint64_t seed, mpt_dataset *parts);
/* One sample, converted as a loader would: `input` gets its elements as fp32, as many as
   mpt_dataset_shape says, `target` its class number; either may be NULL. A target of another dtype,
   or more than one, is an error; mpt_sample_into has room for those. */
MPTRAIN_API mpt_status mpt_sample(
    mpt_dataset dataset, int64_t index, float *input, int64_t *target);
typedef struct mpt_sample_sizes {
    mpt_dtype dtype, target_dtype; /* MPT_F32, or the whole numbers that a loader does not convert;
                                      MPT_DTYPE_NONE: there are no targets */
    mpt_shape shape, target_shape;
    size_t bytes, target_bytes;
} mpt_sample_sizes;
/* The same with targets of any kind, into rooms of so many bytes, aligned for their dtypes, which
   *sizes (may be NULL) tells, also where a room is too small: that is an error, and nothing is
   written. NULL for both rooms makes no sample: it asks for the sizes alone. */
MPTRAIN_API mpt_status mpt_sample_into(mpt_dataset dataset, int64_t index, void *input,
    size_t input_bytes, void *target, size_t target_bytes, mpt_sample_sizes *sizes);
MPTRAIN_API mpt_status mpt_dataset_destroy(mpt_dataset dataset);

/* A batch that has been made, as a loader's `collate` finds it. `x` [size, shape..], of the dtype
   that is delivered, and `y` [size, target shape..] of the dataset are to be changed in place;
   `out` is NULL, or with mpt_loader_config.target_dtype [size, target_shape..] and delivered in
   place of y. `seed` depends on the loader's seed, epoch and batch alone. */
typedef struct mpt_collation {
    int64_t size, index; /* samples; number of the batch in its epoch */
    uint64_t seed;
    void *x, *y, *out;
} mpt_collation;
typedef struct mpt_loader_config {
    int64_t batch;   /* 64 */
    bool shuffle;    /* false */
    bool drop_last;  /* false */
    int workers;     /* 0: the calling thread loads, the context's help with data in memory */
    int prefetch;    /* 2 batches per worker */
    mpt_dtype dtype; /* MPT_F32; inputs arrive so: MPT_F16, MPT_BF16 */
    uint64_t seed;   /* 0: derived from the context's */
    /* NULL; one per sample, copied: `samples` (0: as many as there are) are drawn by weight each
       epoch, with replacement. */
    const double *weights;
    int64_t samples;
    bool skip_bad; /* false; true: samples that fail are left out and counted, the log says why */
    /* 0 of 1: this process's share of an epoch that `world` loaders of the same dataset, seed and
       settings deal out in turn, each sample to one of them. All get as many: the first samples of
       the order are given again where the last round lacks some; with drop_last the last round is
       left out. seed 0 is the same for contexts of the same seed. */
    int rank, world;
    /* NULL; changes each batch, mixes its samples or makes other targets of them. Workers run it
       side by side, for different batches: it calls nothing of the context. False: the batch fails
       with what was written to `error`. */
    bool (*collate)(void *user, const mpt_collation *batch, char *error, size_t error_size);
    void *collate_user;
    mpt_dtype
        target_dtype; /* MPT_DTYPE_NONE: targets stay what they are; else what collate makes */
    mpt_shape target_shape; /* of one sample */
} mpt_loader_config;
MPTRAIN_API mpt_loader_config mpt_loader_config_default(void);
typedef struct mpt_batch {
    mpt_tensor x, y; /* [batch, shape..], [batch, target shape..]; live until the next call */
    int64_t size;    /* samples */
    int64_t index;   /* number of the batch in its epoch */
} mpt_batch;
MPTRAIN_API mpt_loader mpt_loader_create(
    mpt_context *context, mpt_dataset dataset, const mpt_loader_config *config);
/* The next batch; false at the end of an epoch (the next call then starts another one) and on
   error. Order and values depend on seed, epoch and index alone, never on the number of workers. */
MPTRAIN_API bool mpt_loader_next(mpt_loader loader, mpt_batch *batch);
MPTRAIN_API int64_t mpt_loader_batches(mpt_loader loader);  /* per epoch */
MPTRAIN_API mpt_status mpt_loader_reset(mpt_loader loader); /* to the start of a new epoch */
/* Goes on with that batch, as a loader with the same seed would that had come there: with epoch and
   next of mpt_loader_statistics a training resumes where it was. */
MPTRAIN_API mpt_status mpt_loader_seek(mpt_loader loader, int64_t epoch, int64_t batch);
typedef struct mpt_loader_stats {
    int64_t batches;       /* delivered so far, of */
    int64_t samples;       /* so many */
    int64_t skipped;       /* samples left out (skip_bad) */
    int64_t epoch, next;   /* where the loader stands: epoch from 0, number of its next batch */
    double seconds_waited; /* the training thread waited for data */
    int64_t by_worker[64]; /* samples made by each worker */
} mpt_loader_stats;
MPTRAIN_API mpt_loader_stats mpt_loader_statistics(mpt_loader loader);
MPTRAIN_API mpt_status mpt_loader_destroy(mpt_loader loader);

/* ==== Files ================================================================================== */

/* From a name in a file to one in a module. A '*' in `from` stands for any text, also none or with
   dots; that in `to` for the same text. The rules that fit act in the order of their table, each on
   what those before made of the name. */
typedef struct mpt_rename {
    const char *from, *to; /* "transformer.*", "*"; one '*' at most */
    bool transpose;        /* the file has the matrix as [in, out] */
    int part, parts;       /* 0, 0: the whole parameter; else number `part` of `parts` (up to 16)
                              equal ones along its first dimension, as query, key and value are of
                              in_proj_weight */
} mpt_rename;
typedef struct mpt_load_config {
    bool strict;               /* true: the same names on both sides; false: what matches by name */
    const mpt_rename *renames; /* NULL; read during the call, as is `ignore` */
    int rename_count;
    const char *const *ignore; /* NULL; patterns of names of the file, as in `from`, to leave out */
    int ignore_count;
    const char *prefix; /* NULL; "encoder": only what is encoder.x in the file, as x: a part of a
                           net from the file of the whole. Renames act on what is left */
} mpt_load_config;
MPTRAIN_API mpt_load_config mpt_load_config_default(void);
/* All parameters as safetensors. The file appears whole or not at all; rights of one that is there,
   and links to it, stay. */
MPTRAIN_API mpt_status mpt_save(mpt_module module, const char *path);
/* The same of the adapters of mpt_lora alone. mpt_load with strict = false reads it into a net that
   has adapters on the same layers, and one of peft with prefix = "base_model.model"; rank and alpha
   are not in it. */
MPTRAIN_API mpt_status mpt_lora_save(mpt_module module, const char *path);
/* Checks everything, then copies in; on error nothing changed. Values convert to the parameter's
   dtype. Returns the status; *loaded (may be NULL) counts the tensors taken. Two tensors for one
   place are an error; a parameter that lacks a part is missing. What a load that is not strict
   leaves out is told to the log: as a warning where nothing fits, unless all of the file is
   ignored. */
MPTRAIN_API mpt_status mpt_load(
    mpt_module module, const char *path, const mpt_load_config *config, int *loaded);
MPTRAIN_API mpt_status mpt_load_memory(
    mpt_module module, const void *data, size_t bytes, const mpt_load_config *config, int *loaded);

/* ==== Whole trainings ======================================================================== */

/* All that a context's training consists of: values and buffers of its nets, gradients that are
   being accumulated, moments, masters, step counts and rates of optimizers, schedules, scalers with
   their counters, averages, the places of loaders, metrics, and the counters that random draws go
   by. A program that makes the same objects in the same order, loads and goes on leaves the bits of
   a training that never stopped, for any number of threads and workers. It is called between steps,
   behind mpt_scaler_update. What a loop of the user's counts is the user's to keep:
   mpt_step_number and mpt_loader_statistics tell where it was.

   The file is a safetensors file, which appears as a whole or not at all. Weights of the oldest net
   have the names of mpt_save, so that mpt_load reads them with config.strict = false; those of the
   next one stand behind the prefix "mptrain.values.net.1". All else begins with "mptrain.", too, as
   "mptrain.optimizer.0.net.0.0.weight.exp_avg". The bytes depend on the training's state alone. */
MPTRAIN_API mpt_status mpt_checkpoint_save(mpt_context *context, const char *path);
/* Refuses, before anything changes, a file that lacks something or has too much, and names it, and
   settings other than the file's: seeds, batch and size of loaders, weight decay, betas. */
MPTRAIN_API mpt_status mpt_checkpoint_load(mpt_context *context, const char *path);
/* The same in a block of the caller's memory, for programs that go back and try again: bytes from
   mpt_snapshot_bytes (-1 on error), which grow where gradients are waiting. No memory is taken. A
   block is for the context that wrote it, or for one like it of the same build of the library. */
MPTRAIN_API int64_t mpt_snapshot_bytes(mpt_context *context);
MPTRAIN_API mpt_status mpt_snapshot(mpt_context *context, void *block, size_t bytes);
MPTRAIN_API mpt_status mpt_restore(mpt_context *context, const void *block, size_t bytes);
/* A hash of the same, equal where all of it is equal to the bit; 0 on error. */
MPTRAIN_API uint64_t mpt_state_hash(mpt_context *context);
/* Where this training and another run of it part: the first piece of the state that differs from a
   checkpoint's, or from a snapshot's, as text: "0.weight[3, 1] is 0.25 here and 0.5 there". Returns
   the length it needs, which is 0 for equal ones; mpt_failed tells those from a file that cannot be
   read. Counters come before weights, and weights before moments. */
MPTRAIN_API size_t mpt_checkpoint_difference(
    mpt_context *context, const char *path, char *text, size_t size);
MPTRAIN_API size_t mpt_snapshot_difference(
    mpt_context *context, const void *block, size_t bytes, char *text, size_t size);

/* Checkpoints in a folder, for trainings of hours: DIR/step-000000001200.safetensors.

       mpt_checkpoint_open(ctx, "run", NULL);      goes on from the newest file there, if any
       while (!mpt_stop_requested(ctx) && mpt_loader_next(loader, &batch)) {
           ..                                      one step
           mpt_checkpoint_step(ctx);               writes one each 1000 steps
       }
       mpt_checkpoint_close(ctx);                  writes the last one

   Killed at any time and started again, it ends with the bytes of a training that never stopped. */
typedef struct mpt_checkpoint_config {
    int64_t every;   /* 1000; steps between two files; 0: only where a stop is asked for, and at the
                        end. Of loops without mpt_step_begin the optimizers' updates count */
    int keep;        /* 2; how many of the newest files stay */
    bool resume;     /* true: goes on from the newest file; false: a folder that has one is
                        refused */
    bool background; /* false; true: the training waits for a copy in memory alone, which a thread
                        writes; config.io is then called by it, too */
} mpt_checkpoint_config;
MPTRAIN_API mpt_checkpoint_config mpt_checkpoint_config_default(void);
/* Opens a folder, which is made where config.io is the built-in one, for the context's training,
   whose objects are all made; NULL config means defaults. A damaged newest file is told to the log,
   and the one before it taken; one of another training is an error. It is an error, too, where
   another process has the folder open (built-in io, where the system has such locks). */
MPTRAIN_API mpt_status mpt_checkpoint_open(
    mpt_context *context, const char *folder, const mpt_checkpoint_config *config);
/* Behind each step. Also writes, once, where a stop is asked for. */
MPTRAIN_API mpt_status mpt_checkpoint_step(mpt_context *context);
/* Behind a validation: where `value` is less than all before, DIR/best.safetensors is written; NaN
   is less than nothing. */
MPTRAIN_API mpt_status mpt_checkpoint_best(mpt_context *context, double value);
/* Writes the last step's file, unless it is there, waits for the thread and closes the folder.
   mpt_destroy closes without a file. What a thread could not write fails the next call. */
MPTRAIN_API mpt_status mpt_checkpoint_close(mpt_context *context);
/* Of the folder that is open. */
typedef struct mpt_checkpoint_stats {
    int64_t resumed;         /* step of the file that the training went on from; 0: none */
    int64_t files;           /* written since */
    double seconds, longest; /* that the training stood still for them: all, the longest */
    double best;             /* infinity before the first */
} mpt_checkpoint_stats;
MPTRAIN_API mpt_checkpoint_stats mpt_checkpoint_statistics(mpt_context *context);

/* Asks a training to end behind its step, or takes that back: one store, for handlers of signals
   and other threads. Loops of yours ask mpt_stop_requested; mpt_fit does. The library installs no
   handler. */
MPTRAIN_API void mpt_request_stop(mpt_context *context, bool stop);
MPTRAIN_API bool mpt_stop_requested(const mpt_context *context);

/* ==== Captured steps ========================================================================= */

/* A whole training step on inputs x and y (either may be null): calls mpt_step_begin first and
   mpt_step_end last, once. */
typedef mpt_status (*mpt_step_fn)(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y);

/* Makes `fn` a step that, from its third call on, runs without `fn`: its launches are repeated on
   fixed copies of x and y, on a GPU as one CUDA graph. Step number, dropout, loss scale, schedules
   and counters go on as they would. `fn` has to do the same each time: what it decides by itself or
   writes from the host (mpt_write, mpt_from inside the step) cannot be repeated, and what waits for
   the device (mpt_item) is an error in it; use mpt_metric_push. It may be a part of a step: leave
   gradients that add up until an optimizer outside takes and clears them. */
MPTRAIN_API mpt_captured mpt_capture(mpt_context *context, mpt_step_fn fn, void *user);
/* One step. Inputs of another shape or dtype than at the second call, such as a last batch that is
   short, go through `fn`, and so do steps that find other gradients than there were then, if they
   add to them, such as the first one after they were cleared. After a change of mpt_requires_grad,
   mpt_train, mpt_eval, mpt_freeze, mpt_half, mpt_set_dtype_policy, groups, options, schedules or a
   scaler's factors the step is recorded anew. Where it cannot be captured, every call runs `fn`,
   and the log says why. With config.debug every 16th call does and names the first launch that
   differs. */
MPTRAIN_API mpt_status mpt_captured_step(mpt_captured captured, mpt_tensor x, mpt_tensor y);
/* A part of such a step, between two frames of a game: begins a step on x and y where none is under
   way, else goes on with it, and returns after the launch in which `seconds` of the config's clock
   are over; 0: after one launch. *done (may be NULL) tells whether the step is complete. The bits
   are those of mpt_captured_step. x and y are read when the step begins. Until it is done, other
   steps, backward passes and recordings are errors, and changing one of its tensors makes the next
   slice one; a forward pass is allowed, and sees what the step has done so far. What a captured
   step does by hand, and all of it on a GPU, is one slice. mpt_clear_error gives the step up, or
   ends it where weights, states or metrics have changed. */
MPTRAIN_API mpt_status mpt_step_slice(
    mpt_captured captured, mpt_tensor x, mpt_tensor y, double seconds, bool *done);
/* How many steps so far ran without `fn`; -1 on error. */
MPTRAIN_API int64_t mpt_captured_count(mpt_captured captured);
MPTRAIN_API mpt_status mpt_captured_destroy(mpt_captured captured);

/* ==== Fit ==================================================================================== */

typedef struct mpt_progress {
    int epoch, epochs;                           /* from 1 */
    int64_t batch, batches;                      /* from 1 */
    double loss;                                 /* mean of this epoch so far */
    double validation_loss, validation_accuracy; /* NaN until there are some */
    double scale;                                /* loss scale, 1 without a scaler */
    int64_t skipped_steps;
    double steps_per_second, seconds, eta_seconds;
    double seconds_waited; /* of them for batches to train on */
    bool epoch_end;
    int64_t step;     /* of the whole fit, from 1; behind an epoch that of its last batch */
    double lr;        /* of the first group, for the next step; NaN once the optimizer is gone */
    double grad_norm; /* before clipping; NaN without clip_norm or grad_norm. Like loss and scale it
                         is what the host knows by now: on a GPU that of an earlier step */
    int64_t memory;   /* bytes in live use */
    const char *text; /* the line the library would show: bar, figures, ETA */
} mpt_progress;

typedef struct mpt_fit_config {
    int epochs;            /* 5; the first takes what is left of an epoch that is open */
    mpt_dtype precision;   /* MPT_F32; MPT_F16 and MPT_BF16 open an autocast region per step;
                              MPT_PRECISION_AUTO: what mpt_precision_auto says, which is logged */
    mpt_scaler scaler;     /* null handle: none, except for MPT_F16, where a default one is made */
    mpt_loader validation; /* null handle: none */
    double clip_norm;      /* 0: no clipping */
    bool grad_norm;        /* false; measures mpt_progress.grad_norm without clipping, too */
    mpt_schedule schedule; /* stepped (a plateau: told the loss) per epoch; null handle: none */
    mpt_tensor (*loss)(mpt_tensor output, mpt_tensor target, void *user); /* NULL: nll_loss */
    /* Called after every step and epoch; false stops the training. */
    bool (*progress)(void *user, const mpt_progress *progress);
    void *user;
    int patience;           /* 0; epochs without a better validation loss before stopping */
    const char *checkpoint; /* NULL; weights of the best epoch go to this path: by validation loss,
                               or, as long as there was no finite one, the last epoch whose mean
                               loss and weights are finite, or, where none is, the last one */
    bool stop_on_nan;       /* true: an epoch that leaves a mean loss or weights that are not finite
                             is the last, with MPT_ERROR_NUMERIC. Where a scaler with patience skips
                             such steps, it is the one to give up */
    bool restore_weights;   /* true: then the weights and buffers are again those behind the last
                             finite epoch, or those before the fit; it takes a copy of them. States
                             of the optimizer stay: make a new one to go on */
    const char *checkpoints; /* NULL; a folder for whole trainings, as of mpt_checkpoint_open: a fit
                                that was killed goes on, and one that is complete says what it said.
                                Weights of restore_weights are in its files */
    int64_t save_every;      /* 0: one behind each epoch; else one each so many steps */
    bool resume;             /* true: goes on from the newest file; as of mpt_checkpoint_config */
    int64_t accumulate;      /* 0, as 1: each batch is a step; else one is made of the gradients of
                                so many, of the last ones of an epoch also of fewer */
    int64_t micro_batch;     /* 0: a batch goes through the net as a whole; else so many samples of
                                it at a time, in the memory that these take; validation, too */
    /* Either way a step is that of one large batch, where the loss is a mean over samples, but for
       roundings of sums (some 1e-6 in fp32), draws of dropout, and statistics of batch norm, which
       are those of each part. A part that overflows skips the step. */
} mpt_fit_config;
/* What has been trained so far, however the fit ended: complete epochs and steps, and the mean loss
   of the epoch under way, or NaN where there is none. */
typedef struct mpt_fit_result {
    mpt_status status;
    int epochs;
    double train_loss, validation_loss, validation_accuracy, seconds, steps_per_second;
    double seconds_waited; /* for batches to train on; more workers make it less */
    int64_t steps, skipped_steps;
    bool stopped_early; /* by progress or patience */
    bool interrupted;   /* by mpt_request_stop: neither judged nor validated, to be gone on with */
} mpt_fit_result;
MPTRAIN_API mpt_fit_config mpt_fit_config_default(void);
/* Each module stays in the mode that it is in, so that a child in mpt_eval is not trained in
   training mode; a net that is in mpt_eval as a whole is in training meanwhile, but for what was
   frozen. */
MPTRAIN_API mpt_fit_result mpt_fit(
    mpt_module net, mpt_optimizer optimizer, mpt_loader train, const mpt_fit_config *config);
/* Mean nll loss and accuracy (argmax over the last dimension) in inference mode and eval, over
   a whole epoch of the loader. For other losses: validation in mpt_fit, or a loop. */
typedef struct mpt_evaluation {
    mpt_status status;
    double loss, accuracy;
    int64_t samples;
} mpt_evaluation;
MPTRAIN_API mpt_evaluation mpt_evaluate(mpt_module net, mpt_loader loader, mpt_dtype precision);

#ifdef __cplusplus
}
#endif
#endif /* MPT__FACE_TRAINING_INCLUDED */
