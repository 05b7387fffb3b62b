/* ----
 * face/changelog.h: changelog; licence.
 * ---- */
#ifndef MPT__FACE_CHANGELOG_INCLUDED
#define MPT__FACE_CHANGELOG_INCLUDED

/* ==== Changelog ==============================================================================

0.1.0
    First release: tensors, autograd, autocast to fp16 and bf16, pure half, gradient scaling,
    modules, optimizers, also of your own, schedules, averages of weights, data loading, tables that
    programs without the training data read as it was read, safetensors, checkpoints and snapshots
    of whole trainings that go on to the bit, in a folder by themselves, CPU kernels for x86-64 up
    to AMX, for AArch64, and portable C everywhere, whose bits vectors give on request; CUDA kernels
    in mptrain_cuda.cu, which no real GPU has run yet; captured steps; on request the CPU kernels in
    a second file; draws of classes by weight or logits; confusion matrices; L-BFGS; Muon; hooks at
    modules; recurrent layers: RNN, LSTM, GRU and their cells; rotary positions, gated units
    (SwiGLU), norms of queries and keys, attention by a sliding window, caches of keys and values;
    hash grids; one copy of the weights for several threads; CUDA kernels of your own in ops;
    activation checkpointing; a profiler by op, module and kernel, with FLOP and bytes; a flight
    recorder, which finds the step and op where two runs part; nets as graphs; plans of the memory
    that a training takes; updates inside backward; low-rank adapters (LoRA); fits whose steps are
    of several batches, or of parts of one; moments of 8 bits; residual streams in half; as
    few blocks run again as it takes to fit a budget.
    tools/mptrain_compile.h: compiled steps.
    tools/mptrain_parallel.h: data parallel over MPI, on CPUs; batch norms of all ranks; optimizers'
    states in shards.
    tools/mptrain_tools.h: journals for TensorBoard, as CSV and as JSON lines; what is wrong with a
    training; what this machine does and how fast; profiles as traces for Perfetto; nets in tables
    and pictures; reports; training by forwards alone; nets as ONNX.
*/

/* ==== Licence ================================================================================

mptrain is available under two licences: choose the one you prefer.

-----------------------------------------------------------------------------------------------
ALTERNATIVE A - MIT No Attribution (MIT-0)

Copyright (c) 2026 the mptrain authors

Permission is hereby granted, free of charge, to any person obtaining a copy of
this software and associated documentation files (the "Software"), to deal in
the Software without restriction, including without limitation the rights to
use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
of the Software, and to permit persons to whom the Software is furnished to do
so.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.

-----------------------------------------------------------------------------------------------
ALTERNATIVE B - Public Domain (www.unlicense.org)

This is free and unencumbered software released into the public domain.

Anyone is free to copy, modify, publish, use, compile, sell, or distribute this
software, either in source code form or as a compiled binary, for any purpose,
commercial or non-commercial, and by any means.

In jurisdictions that recognize copyright laws, the author or authors of this
software dedicate any and all copyright interest in the software to the public
domain. We make this dedication for the benefit of the public at large and to
the detriment of our heirs and successors. We intend this dedication to be an
overt act of relinquishment in perpetuity of all present and future rights to
this software under copyright law.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN
ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
*/

#endif
