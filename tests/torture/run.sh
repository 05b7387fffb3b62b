#!/bin/sh
# What `make torture` runs:  run.sh BUILD. QUICK=1 is for every day, LONG=1 for a night; SEED and ONLY
# choose. Each program prints a line of figures; the last line of all says how many passed.
set -u
build=$1 seed=${SEED:-1} passed=0 failed=0 began=$(date +%s)
make=${MAKE:-make}
folder=$build/torture/tmp
case "${MAKEFLAGS:-}" in *jobserver*) jobs= ;; *) jobs=-j2 ;; esac

# column CASES QUICK LONG: the number of cases of this run
column() {
    if [ -n "${LONG:-}" ]; then echo "$3"; elif [ -n "${QUICK:-}" ]; then echo "$2"; else echo "$1"; fi
}

# run LIMIT NAME COMMAND...: prints what it says and its seconds; no torture takes longer than LIMIT
run() {
    limit=$1 name=$2 start=$(date +%s)
    shift 2
    if command -v timeout >/dev/null 2>&1; then set -- timeout -k 10 "$limit" "$@"; fi
    "$@" --seed "$seed" --folder "$folder"
    status=$?
    if [ $status -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    [ $status -eq 0 ] && word=PASS || word="FAIL (status $status)"
    echo "$word $name, $(($(date +%s) - start)) s"
}

wanted() { case " ${ONLY:-$1} " in *" $1 "*) return 0 ;; esac; return 1; }

build_plain() { # build_plain NAME...: those that are wanted, as the library is
    list=
    for name in "$@"; do ! wanted "$name" || list="$list $build/torture/torture_$name"; done
    [ -z "$list" ] || $make -s $jobs BUILD="$build" $list || { echo '0 passed, 1 failed, 0 skipped' && exit 1; }
}

plain() { # plain LIMIT NAME CASES QUICK LONG
    ! wanted "$2" || run "$1" "$2" "$build/torture/torture_$2" --cases "$(column "$3" "$4" "$5")"
}

build_plain kills power resumes
mkdir -p "$folder"
plain 600 kills 200 20 1000
plain 600 power 200000 20000 2000000
plain 900 resumes 60 12 1200

rmdir "$folder" 2>/dev/null
echo "torture: $(($(date +%s) - began)) s, seed $seed"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
