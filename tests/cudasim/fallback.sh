#!/bin/sh
# The examples of a CUDA build where there is no GPU: fallback.sh BUILD    built there by make cuda
# or suite.sh. Each must do its work on the CPU and say so in one line on stderr, no more and no
# less, but for the warnings that its source tells of ("test warnings: 2"); --quiet is quiet;
# --device cuda is one line that says what is wrong, and status 2.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(cd "$1" && pwd) || exit 1
folder=$build/fallback
passed=0 failed=0
export CUDASIM_DEVICES=0 CUDA_VISIBLE_DEVICES= # the simulator's, and real ones
unset MPTRAIN_ISA
mkdir -p "$folder"

# check NAME STATUS LINES TEXT ARGUMENTS...: the status that example NAME ends with, and what it
# leaves on stderr
check() {
    name=$1 status=$2 lines=$3 text=$4
    shift 4
    (cd "$folder" && "$build/$name" "$@" >"$name.out" 2>"$name.err" </dev/null)
    got=$?
    if [ $got -eq "$status" ] && [ "$(wc -l <"$folder/$name.err")" -eq "$lines" ] &&
        { [ -z "$text" ] || grep -qE "^($name|mptrain): .*$text" "$folder/$name.err"; }; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    echo "FAIL $name $*: status $got, expected $status and $lines lines with \"$text\":"
    head -n 5 "$folder/$name.err" | sed 's/^/    | /'
}

check mnist 0 1 'no GPU [(].*[)]: computing on the CPU$' --subset 512 --epochs 1
check mnist 0 1 'no GPU [(].*[)]: computing on the CPU$' --subset 128 --epochs 1 --compare
for source in examples/*.c; do # digits finds the weights of mnist
    name=$(basename "$source" .c)
    [ "$name" != mnist ] || continue
    arguments=$(sed -n 's/.*test arguments: *\(.*[^ ]\) *$/\1/p' "$source" | sed 's/ *\*\/$//')
    warnings=$(sed -n 's/.*test warnings: *\([0-9]*\).*/\1/p' "$source")
    # shellcheck disable=SC2086  # a list of words
    check "$name" 0 $((1 + ${warnings:-0})) 'no GPU [(].*[)]: computing on the CPU$' $arguments
done
check mnist 0 0 '' --subset 128 --epochs 1 --quiet
check mnist 0 0 '' --subset 128 --epochs 1 --device cpu
check mnist 2 1 'no CUDA device: .*use MPT_DEVICE_AUTO or MPT_DEVICE_CPU$' --device cuda
check mnist 2 1 'no CUDA device: .*use MPT_DEVICE_AUTO or MPT_DEVICE_CPU$' --device cuda --compare
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
