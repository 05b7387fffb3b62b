#!/bin/sh
# Compiles mptrain_cuda.cu for real GPUs, with warnings as errors, and looks at what came out:
#     check_ptx.sh [ARCH...]       default: sm_75 sm_80 sm_90 sm_120, as many at a time as cores, or
#                                  CUDASIM_JOBS
#     check_ptx.sh --read PTX      only looks at the accesses of that file
# Fails where a kernel spills registers, or where a streaming kernel of the table below has fewer
# 128-bit accesses of global memory than it says. Objects and logs lie in build/ptx/. Without nvcc
# it says so and checks nothing. CUDA_HOME names another toolkit than /usr/local/cuda.
set -eu
cd "$(dirname "$0")/../.."
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
folder=build/ptx
looked_at=sm_80 # whose PTX is read; that of the others differs in no access

# Part of a kernel's mangled name, and how many loads and stores of 128 bits its PTX has at least, as
# nvcc 13.0 makes it: for fp32 two per eight elements, for halves one, once per array. Where work on
# a kernel changes a number, see that it was meant, and change it here.
streaming='
mpt__fill_kernel                         0  3
mpt__copy_kernel                         6  3
mpt__unary_kernel                        6  3
mpt__binary_kernel                       9  3
mpt__dropout_kernel                      6  3
mpt__random_kernel                       0  3
mpt__find_nonfinite_kernel               3  0
mpt__reduce_rows_kernelILi32ELi8         3  0
mpt__reduce_rows_kernelILi256ELi8        3  0
mpt__reduce_columns_kernelILi8           3  0
mpt__softmax_short_kernel               24 12
mpt__softmax_kernelILi256ELi8            9  3
mpt__softmax_backward_short_kernel      36 12
mpt__softmax_backward_kernelILi256ELi8  15  3
mpt__loss_kernelILi32ELi8                3  0
mpt__loss_kernelILi256ELi8               3  0
mpt__loss_backward_kernelILi32ELi8       6  3
mpt__loss_backward_kernelILi256ELi8      6  3
mpt__pack_kernel                         6  3
mpt__finish_kernel                       9  3
mpt__grad_norm_kernelILi0               20  0
mpt__grad_scale_kernel                   2  2
mpt__update_kernel                      11  9
mpt__coded_update_kernel                 5  9
mpt__average_kernel                      1  1
'

# compile ARCH: one line about it
compile() {
    log=$folder/$1.log
    start=$(date +%s)
    mkdir -p "$folder/$1"
    if ! "$nvcc" -std=c++17 -O2 -arch="$1" -Werror all-warnings -Xcompiler -Wall,-Wextra \
        -Xptxas -v -keep -keep-dir "$folder/$1" -Isrc \
        -c build/mptrain_cuda.cu -o "$folder/$1.o" \
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

# Kernels of the table with fewer accesses than it says, or that are not there at all; and atomics of
# floating-point numbers, whose order nobody knows.
lacking() {
    echo "$streaming" | awk '
        FNR == NR { if (NF > 0) { load[$1] = $2; store[$1] = $3 } next }
        /\.entry/ { entry = $0; loads[entry] = stores[entry] = 0 }
        entry != "" && /ld\.global[a-z.]*\.v4\.[a-z]*32/ { loads[entry]++ }
        entry != "" && /st\.global[a-z.]*\.v4\.[a-z]*32/ { stores[entry]++ }
        /[ \t](atom|red)\..*\.(bf|f)(16|32|64)/ { print entry ": a floating-point atomic:" $0 }
        END {
            for (name in load) {
                seen = 0
                for (entry in loads) {
                    if (!index(entry, name)) continue
                    seen = 1
                    if (loads[entry] < load[name])
                        print name ": " loads[entry] " 128-bit loads, not " load[name]
                    if (stores[entry] < store[name])
                        print name ": " stores[entry] " 128-bit stores, not " store[name]
                }
                if (!seen) print name ": no such kernel"
            }
        }' - "$1"
}

if [ "${1:-}" = --one ]; then
    compile "$2"
    exit
fi
if [ "${1:-}" = --read ]; then
    lacking "$2"
    exit
fi
if [ ! -x "$nvcc" ]; then
    echo "check_ptx.sh: skipped, there is no nvcc in ${nvcc%/nvcc}"
    exit 0
fi
[ $# -gt 0 ] || set -- sm_75 sm_80 sm_90 sm_120
mkdir -p "$folder"
make -s build/mptrain_cuda.cu
printf '%s\n' "$@" | xargs -n 1 -P "${CUDASIM_JOBS:-$(nproc)}" sh tests/cudasim/check_ptx.sh --one
for arch in "$@"; do
    [ "$arch" = $looked_at ] || continue
    found=$(lacking "$folder/$arch/mptrain_cuda.ptx")
    [ -z "$found" ] || {
        echo "$found"
        exit 1
    }
    # The check itself: a kernel that loses accesses is found.
    sed '/entry.*mpt__fill_kernel/,/^}/s/st\.global.*\.v4\.f32/lost/' \
        "$folder/$arch/mptrain_cuda.ptx" >"$folder/lost.ptx"
    [ -n "$(lacking "$folder/lost.ptx")" ] || {
        echo "$arch: FAIL, the loss of an access goes unseen"
        exit 1
    }
    echo "$arch: $(echo "$streaming" | grep -c _) streaming kernels access 128 bits at a time"
done
