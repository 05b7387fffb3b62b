/* ----
 * tools/face/machine.h: what this machine computes with, and how fast.
 * ---- */
#ifndef MPT__FACE_MACHINE_INCLUDED
#define MPT__FACE_MACHINE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== The machine ====
 *
 * What this machine computes with, how fast it is, and what mixed precision gains here. `make
 * doctor` prints it. */

typedef struct mpt_machine {
    double product[3]; /* floating-point operations a second of products of square matrices, of
                          64 to 4,096 rows so that one takes a millisecond, in fp32, fp16, bf16 */
    double copy;       /* bytes a second, read and written, of copies of 64 MB in all */
    double step[3];    /* seconds of a training step with AdamW of a net of 784, 1,024, 1,024 and
                          10, 256 samples, in fp32 and under autocast to fp16 and bf16 */
} mpt_machine;

/* Measures for about so many seconds, with the context's threads and memory; 0 means 2. All zero on
   error. The numbers are medians: other programs that run meanwhile slow them down. */
MPTRAIN_TOOLS_API mpt_machine mpt_machine_measure(mpt_context *context, double seconds);

/* The machine in words, a fact a line: device, instruction sets, threads, memory, what was compiled
   in a way that hurts, and, unless `measured` is NULL, how fast it is and which precision to train
   in. Writes at most `capacity` bytes, the last one 0, and returns the length of the whole text; 0
   on error. */
MPTRAIN_TOOLS_API size_t mpt_machine_report(
    mpt_context *context, const mpt_machine *measured, char *text, size_t capacity);

/* Measures each matrix of parameters, named *.weight, in products with a batch of so many rows,
   against the same ones with sizes rounded up to multiples of 8, 16 and 64, in the dtype that
   products have under autocast to `precision`. Writes a line for each that is faster when it is
   padded, with the size to take and the measured factor, as mpt_machine_report writes; returns 0
   where there is none, too. Takes some 50 ms a matrix. */
MPTRAIN_TOOLS_API size_t mpt_machine_shapes(
    mpt_module module, int64_t rows, mpt_dtype precision, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
