#!/bin/sh
# The CUDA backend on the CPU, in every mode: check.sh [FOLDER]    builds in FOLDER, build/cudasim
# Launches in ascending, descending and random order with streams that run late, whole trainings,
# graphs, both sanitizers. Prints seconds, of work side by side; the counts of its parts add up to
# what it proves.
set -u
here=$(dirname "$0")
folder=${1:-build/cudasim}
failed=0
# All kernels, against plain loops; all ops, against PyTorch and finite differences.
kernels=tests/test_cpu_ref.c ops=tests/api_golden_ops.c gradients=tests/test_gradcheck.c
trainings="tests/cudasim/api_cuda.c tests/api_capture.c"
faults=tests/cudasim/api_faults.c digits=tests/cudasim/api_digits.c
mkdir -p "$folder"
CUDASIM_OBJECTS=${CUDASIM_OBJECTS:-$(cd "$folder" && pwd)/cudasim}
export CUDASIM_OBJECTS

part() { # part NAME MODE VARIABLES TESTS
    start=$(date +%s)
    # shellcheck disable=SC2086  # VARIABLES and TESTS are lists
    env $3 sh "$here/suite.sh" "$folder/$2" "$2" -s EXAMPLES= TESTS="$(echo $4)" test || failed=1
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

sanitizers() {
    part 'address sanitizer' asan MPTRAIN_STEPS=3 "$kernels $ops $trainings $faults $digits"
    part 'thread sanitizer' tsan 'MPTRAIN_STEPS=3 CUDASIM_ORDER=3' \
        "$kernels $ops tests/api_capture.c $digits"
    return $failed
}

sanitizers >"$folder/sanitizers.log" 2>&1 &
part 'every test, in order' plain '' "$(sh "$here/tests.sh" sim)"
sh "$here/products.sh" "$folder/plain" plain || failed=1
part 'backwards' plain CUDASIM_ORDER=1 "$kernels $ops $gradients $trainings"
part 'shuffled, streams late' plain 'CUDASIM_ORDER=7 CUDASIM_ASYNC=1' \
    "$kernels $ops $gradients $trainings"
examples
wait $! || failed=1
cat "$folder/sanitizers.log"
exit $failed
