#!/bin/sh
# The CUDA backend on the CPU, in every mode: check.sh [FOLDER]    builds in FOLDER, build/cudasim
# Launches in ascending, descending and random order with streams that run late, whole trainings,
# graphs, both sanitizers. Prints seconds; the counts of its parts add up to what it proves.
set -u
here=$(dirname "$0")
folder=${1:-build/cudasim}
failed=0
kernels=tests/test_cpu_ref.c
trainings="tests/cudasim/api_cuda.c tests/api_capture.c"
faults=tests/cudasim/api_faults.c digits=tests/cudasim/api_digits.c
suite="$kernels $trainings $faults $digits tests/api_golden_ops.c tests/api_golden_train.c
    tests/api_autocast.c tests/api_losses.c tests/api_modules.c tests/api_optim.c
    tests/api_scaler.c tests/api_sort.c tests/api_inplace.c tests/api_resize.c"

part() { # part NAME MODE TESTS
    start=$(date +%s)
    # shellcheck disable=SC2086  # TESTS is a list
    sh "$here/suite.sh" "$folder/$2" "$2" -s EXAMPLES= TESTS="$(echo $3)" test || failed=1
    echo "$1: $(($(date +%s) - start)) s"
}

# The examples, without a device, and on a card without Tensor Cores.
examples() {
    start=$(date +%s)
    sh "$here/suite.sh" "$folder/plain" plain -s examples &&
        sh "$here/fallback.sh" "$folder/plain" || failed=1
    for capability in 61 90; do
        (cd "$folder/plain" && CUDASIM_CAPABILITY=$capability ./mnist --subset 64 --epochs 1) |
            grep -q 'where 16 bits save memory, not time$'
        [ $? -eq $((capability > 70)) ] || {
            echo "FAIL mnist on a card of capability $capability"
            failed=1
        }
    done
    echo "examples: $(($(date +%s) - start)) s"
}

part 'every test, in order' plain "$suite"
sh "$here/products.sh" "$folder/plain" plain || failed=1
CUDASIM_ORDER=1 part 'backwards' plain "$kernels $trainings"
CUDASIM_ORDER=7 CUDASIM_ASYNC=1 part 'shuffled, streams late' plain "$kernels $trainings"
export MPTRAIN_STEPS=3 # of the digits
part 'address sanitizer' asan "$kernels $trainings $faults $digits"
CUDASIM_ORDER=3 part 'thread sanitizer' tsan "tests/api_capture.c $digits"
examples
exit $failed
