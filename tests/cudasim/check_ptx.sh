#!/bin/sh
# Compiles mptrain_cuda.cu for real GPUs, with warnings as errors, and looks at what came out:
#     check_ptx.sh [ARCH...]       default: sm_75 sm_80 sm_90 sm_120, as many at a time as cores
# Fails where a kernel spills registers, or where a streaming kernel of the table below does without
# 128-bit accesses of global memory. Objects and logs lie in build/ptx/. Without nvcc it says so and
# checks nothing. CUDA_HOME names another toolkit than /usr/local/cuda.
set -eu
cd "$(dirname "$0")/../.."
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
folder=build/ptx
looked_at=sm_80 # whose PTX is read; that of the others differs in no access

# Part of a kernel's mangled name, and what it must have: loads, stores, or both of 128 bits.
streaming='
mpt__fill_kernel                     st
mpt__copy_kernel                  ld st
mpt__unary_kernel                 ld st
mpt__binary_kernel                ld st
mpt__dropout_kernel               ld st
mpt__random_kernel                   st
mpt__reduce_rows_kernelILi32ELi8  ld
mpt__reduce_rows_kernelILi256ELi8 ld
mpt__reduce_columns_kernelILi8    ld
mpt__softmax_short_kernel         ld st
mpt__softmax_kernelILi256ELi8     ld st
mpt__softmax_backward_short       ld st
mpt__softmax_backward_kernelILi256ELi8 ld st
mpt__loss_kernelILi32ELi8         ld
mpt__loss_kernelILi256ELi8        ld
mpt__loss_backward_kernelILi32ELi8 ld st
mpt__loss_backward_kernelILi256ELi8 ld st
mpt__grad_norm_kernel             ld
mpt__grad_scale_kernel            ld st
mpt__update_kernel                ld st
mpt__average_kernel               ld st
'

# compile ARCH: one line about it
compile() {
    log=$folder/$1.log
    start=$(date +%s)
    mkdir -p "$folder/$1"
    if ! "$nvcc" -std=c++17 -O2 -arch="$1" -Werror all-warnings -Xcompiler -Wall,-Wextra \
        -Xptxas -v -keep -keep-dir "$folder/$1" -c mptrain_cuda.cu -o "$folder/$1.o" \
        >"$log" 2>&1; then
        echo "$1: FAIL"
        grep -v '^ptxas info\|bytes spill' "$log" | head -n 40
        return 1
    fi
    kernels=$(grep -c 'Compiling entry' "$log" || true)
    spilling=$(awk '/Compiling entry/ { name = $0 }
                    / spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ {
                        print name; print }' "$log")
    echo "$1: $kernels kernels in $(($(date +%s) - start)) s"
    [ "$kernels" -gt 0 ] || return 1
    [ -z "$spilling" ] || {
        echo "$1: FAIL, these spill:"
        echo "$spilling"
        return 1
    }
}

# Kernels of the table that lack an access, or are not there at all.
lacking() {
    echo "$streaming" | awk '
        FNR == NR { if (NF > 0) { load[$1] = / ld/; store[$1] = / st/ } next }
        /\.entry/ { entry = $0 }
        entry != "" {
            for (name in load) if (index(entry, name)) {
                seen[name] = 1
                if (/ld\.global[a-z.]*\.v4\.[a-z]*32/) load[name] = 0
                if (/st\.global[a-z.]*\.v4\.[a-z]*32/) store[name] = 0
            }
        }
        END {
            for (name in load) {
                if (!seen[name]) print name ": no such kernel"
                else if (load[name]) print name ": no 128-bit load"
                else if (store[name]) print name ": no 128-bit store"
            }
        }' - "$1"
}

if [ "${1:-}" = --one ]; then
    compile "$2"
    exit
fi
if [ ! -x "$nvcc" ]; then
    echo "check_ptx.sh: skipped, there is no nvcc in ${nvcc%/nvcc}"
    exit 0
fi
[ $# -gt 0 ] || set -- sm_75 sm_80 sm_90 sm_120
mkdir -p "$folder"
printf '%s\n' "$@" | xargs -n 1 -P "$(nproc)" sh tests/cudasim/check_ptx.sh --one
for arch in "$@"; do
    [ "$arch" = $looked_at ] || continue
    found=$(lacking "$folder/$arch/mptrain_cuda.ptx")
    [ -z "$found" ] || {
        echo "$found"
        exit 1
    }
    echo "$arch: $(echo "$streaming" | grep -c _) streaming kernels access 128 bits at a time"
done
