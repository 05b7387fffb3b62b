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
suite="$kernels $trainings tests/api_golden_ops.c tests/api_golden_train.c tests/api_autocast.c
    tests/api_modules.c tests/api_optim.c tests/api_scaler.c"

part() { # part NAME MODE TESTS
    start=$(date +%s)
    # shellcheck disable=SC2086  # TESTS is a list
    sh "$here/suite.sh" "$folder/$2" "$2" -s EXAMPLES= TESTS="$(echo $3)" test || failed=1
    echo "$1: $(($(date +%s) - start)) s"
}

part 'every test, in order' plain "$suite"
sh "$here/products.sh" "$folder/plain" plain || failed=1
CUDASIM_ORDER=1 part 'backwards' plain "$kernels $trainings"
CUDASIM_ORDER=7 CUDASIM_ASYNC=1 part 'shuffled, streams late' plain "$kernels $trainings"
part 'address sanitizer' asan "$kernels $trainings"
CUDASIM_ORDER=3 part 'thread sanitizer' tsan tests/api_capture.c
exit $failed
