#!/bin/sh
# Prints the tests that a GPU, or what simulates one, can run: tests.sh [sim]    sim: those too that
# make it fail, but models of full size, which take minutes there. A new tests/api_*.c is among them
# without more ado. These are not: they have to do with the CPU's memory or with no device at all, or
# take long:
set -eu
cd "$(dirname "$0")/../.."
others=' api_data api_examples api_memory api_mnist api_scaling '
for test in tests/test_cpu_ref.c tests/test_gradcheck.c tests/cudasim/api_*.c tests/api_*.c; do
    case $others in *" $(basename "$test" .c) "*) continue ;; esac
    if [ "${1:-}" = sim ]; then
        ! grep -q 'heavy test' "$test" || continue
    elif [ "$test" = tests/cudasim/api_faults.c ]; then
        continue
    fi
    echo "$test"
done
