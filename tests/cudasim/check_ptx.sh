#!/bin/sh
# Compiles mptrain_cuda.cu for real GPUs, with warnings as errors, and looks at what came out:
#     check_ptx.sh [ARCH...]       default: sm_75 sm_80 sm_90 sm_120, as many at a time as cores, or
#                                  CUDASIM_JOBS
#     check_ptx.sh --read PTX      only looks at the accesses of that file
# Fails where a kernel spills registers, where a streaming kernel of the table below has fewer
# 128-bit accesses of global memory than it says, or where one on tensor cores has fewer products,
# more around them or less company on a multiprocessor than its table says. Objects and logs lie in build/ptx/. Without nvcc
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

# Kernels on tensor cores: how many mma their main loop has, and how many other instructions of
# arithmetic and shared memory for ten of them at most, in PTX (main_loops.awk); threads and shared
# memory of a block, of which as many run at once as make a quarter of what a multiprocessor holds.
# For heads of 64 the bars are 4 forward and 6 backward for each mma in machine code, where nvdisasm
# of CUDA 13 counts 3.6 to 3.9, and 2.5 to 3: PTX has more moves and additions of addresses.
matrix='
attention_matrix_kernelILb[01]ELi32ELb0                32 90 128 15360
attention_matrix_kernelILb[01]ELi64ELb0                64 50 128 27648
attention_matrix_kernelILb[01]ELi96ELb0                48 40 128 26624
attention_matrix_kernelILb[01]ELi128ELb0               32 50 128 33024
attention_matrix_back_kernelILb[01]ELi32ELb0ELb0ELi1   24 70 128 20736
attention_matrix_back_kernelILb[01]ELi32ELb0ELb1ELi3   32 60 128 20992
attention_matrix_back_kernelILb[01]ELi64ELb0ELb0ELi1   48 60 128 37120
attention_matrix_back_kernelILb[01]ELi64ELb0ELb1ELi3   64 60 128 37376
attention_matrix_back_kernelILb[01]ELi96ELb0ELb0ELi1   36 60 256 60416
attention_matrix_back_kernelILb[01]ELi96ELb0ELb1ELi1   36 60 256 60032
attention_matrix_back_kernelILb[01]ELi96ELb0ELb1ELi2   24 60 256 49664
attention_matrix_back_kernelILb[01]ELi128ELb0ELb0ELi1  48 60 256 78848
attention_matrix_back_kernelILb[01]ELi128ELb0ELb1ELi1  48 60 256 78464
attention_matrix_back_kernelILb[01]ELi128ELb0ELb1ELi2  32 60 256 66048
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

# slow PTX LOG: kernels of the table on tensor cores that are not as it says, each of which is there
# for bf16 and fp16.
slow() {
    {
        echo "$matrix"
        awk -f tests/cudasim/main_loops.awk "$1" | sed 's/^/loop /'
        sed -n 's/.*Compiling entry function .\([^ ]*\). for.*/kernel \1/p
                s/.*Used \([0-9]*\) registers.*/registers \1/p' "$2"
    } | awk '
        $1 == "loop" { mma[$2] = $3; others[$2] = $4; next }
        $1 == "kernel" { kernel = $2; next }
        $1 == "registers" { registers[kernel] = $2; next }
        NF == 5 { most[$1] = $3; least[$1] = $2; threads[$1] = $4; shared[$1] = $5 }
        END {
            for (row in least) {
                seen = 0
                for (kernel in registers) {
                    if (kernel !~ row) continue
                    seen++
                    if (mma[kernel] < least[row])
                        print kernel ": " mma[kernel] + 0 " mma in its loop, not " least[row]
                    if (10 * others[kernel] > most[row] * mma[kernel])
                        print kernel ": " others[kernel] " others, of " mma[kernel] " mma"
                    blocks = int(65536 / (int((registers[kernel] + 7) / 8) * 8 * threads[row]))
                    room = int(167936 / (shared[row] + 1024))
                    if (room < blocks) blocks = room
                    if (blocks * threads[row] < 512)
                        print kernel ": " blocks " blocks of " threads[row] " threads at once"
                }
                if (seen != 2) print row ": " seen " kernels, not 2"
            }
        }'
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
    found=$(slow "$folder/$arch/mptrain_cuda.ptx" "$folder/$arch.log")
    [ -z "$found" ] || {
        echo "$found"
        exit 1
    }
    # The checks themselves: kernels that lose accesses, and products, are found.
    sed '/entry.*mpt__fill_kernel/,/^}/s/st\.global.*\.v4\.f32/lost/' \
        "$folder/$arch/mptrain_cuda.ptx" >"$folder/lost.ptx"
    [ -n "$(lacking "$folder/lost.ptx")" ] || {
        echo "$arch: FAIL, the loss of an access goes unseen"
        exit 1
    }
    sed '/entry.*attention_matrix_kernelILb0ELi64ELb0/,/^}/s/mma\.sync/lost/' \
        "$folder/$arch/mptrain_cuda.ptx" >"$folder/lost.ptx"
    [ -n "$(slow "$folder/lost.ptx" "$folder/$arch.log")" ] || {
        echo "$arch: FAIL, the loss of a product goes unseen"
        exit 1
    }
    echo "$arch: $(echo "$matrix" | grep -c _) kernels on tensor cores have short loops, and company"
    echo "$arch: $(echo "$streaming" | grep -c _) streaming kernels access 128 bits at a time"
done
