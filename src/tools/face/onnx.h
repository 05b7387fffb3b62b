/* ----
 * tools/face/onnx.h: a net as an ONNX file.
 * ---- */
#ifndef MPT__FACE_ONNX_INCLUDED
#define MPT__FACE_ONNX_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== ONNX ====
 *
 * A net as a file that onnxruntime, TensorRT, OpenVINO and others run: opset 18 of onnx.ai. */

enum { MPT_ONNX_OPSET = 18 };

typedef struct mpt_onnx_config {
    const char *const *inputs;  /* NULL: "input", or of several "input1", "input2" .. */
    const char *const *outputs; /* NULL: "output" .. */
    const char *batch;          /* "batch": what the size of a batch is called in shapes; NULL: the
                                   sizes of the inputs given are the only ones */
    const int *batch_dims;      /* which dimension of each input that is, -1 none; NULL: 0 of all */
    int64_t beside;             /* 2^30; bytes of weights from which on they go to a second file,
                                   whose name is the first one's with ".data" behind it */
} mpt_onnx_config;
MPTRAIN_TOOLS_API mpt_onnx_config mpt_onnx_config_default(void);

/* Writes what the net computes of such inputs in evaluation, in the autocast region that is open:
   it runs it, and where there is a batch once more with one of twice the size, which tells what
   goes with it (of 1, with 2 and 4). What the program decides by numbers it has read is in the
   file as it was decided. Weights have the names of mpt_parameter_at, and dtypes and layout as in
   the net; names of values between begin with their module. A product of fp16 is one in the file
   where its result is fp16, too; norms, softmax and attention are fp32, as in the net; bf16 is
   fp32 that is rounded, as runtimes have few kernels of it. The same net gives the same bytes.
   Needs MPTRAIN_WATCH.
   Files are written beside what is at `path` (UTF-8), which they replace once they are whole.
   Errors: MPT_ERROR_UNSUPPORTED: an op that ONNX has nothing for, or a size that does not go with
   the batch in a simple way; ARGUMENT, IO, MEMORY; else the context's. `why`, of `capacity` bytes
   or NULL, tells, with op and module. Nothing is written then. config NULL: defaults. */
MPTRAIN_TOOLS_API mpt_status mpt_onnx_export(mpt_module net, const mpt_tensor *inputs,
    int n_inputs, const char *path, const mpt_onnx_config *config, char *why, size_t capacity);
/* How an op of the table in mptrain.h ("linear") is written: what it becomes, as "Gemm", or, where
   it is made of several, "composed"; NULL: it has no form there, or is none of the table. */
MPTRAIN_TOOLS_API const char *mpt_onnx_form(const char *op);

#ifdef __cplusplus
}
#endif
#endif
