#!/bin/sh
# Tests the matrix products and attention of mptrain_cuda.cu in the simulator:
#     products.sh FOLDER [MODE...]
# MODE: plain (also with threads in other orders, and streams that wait), asan, tsan.
# On a machine with a GPU: nvcc -arch=native -I. -Isrc tests/cudasim/test_products.cu -lcublasLt
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
mkdir -p "$1/rewritten"
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- plain asan tsan
# The test includes the backend, rewritten.
make -s -C "$root" BUILD="$folder" "$folder/mptrain_cuda.cu"
sh "$here/build.sh" --rewrite "$folder/rewritten/mptrain_cuda.cu" "$folder/mptrain_cuda.cu"
for mode in "$@"; do
    case $mode in
        plain) flags='-O1' orders='0 1 7' ;;
        asan) flags='-O1 -fsanitize=address,undefined -fno-sanitize-recover=all' orders=0 ;;
        tsan) flags='-O1 -fsanitize=thread' orders=0 ;;
        *) echo "products.sh: what is $mode?" >&2 && exit 2 ;;
    esac
    for test in ${CUDASIM_TESTS:-test_products test_attention}; do
        program=$folder/$test-$mode
        sh "$here/build.sh" "$program" \
            "-g $flags -Wall -Wextra -I$folder/rewritten -I$root/src -I$here" "$here/$test.cu"
        for order in $orders; do
            echo "== $test, $mode, order $order"
            CUDASIM_ORDER=$order CUDASIM_ASYNC=$((order > 0)) "$program"
        done
    done
done
