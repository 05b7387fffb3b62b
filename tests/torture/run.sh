#!/bin/sh
# What `make torture` runs:  run.sh BUILD. QUICK=1 is for every day, LONG=1 for a night; SEED and
# ONLY choose. Each program prints a line of figures; the last line of all says how many passed.
set -u
build=$1 seed=${SEED:-1} make=${MAKE:-make} began=$(date +%s) passed=0 failed=0 skipped=0
folder=$build/torture/tmp
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
case "${MAKEFLAGS:-}" in *jobserver*) jobs= ;; *) jobs=-j2 ;; esac

have() { command -v "$1" >/dev/null 2>&1; }
wanted() { case " ${ONLY:-$1} " in *" $1 "*) return 0 ;; esac; return 1; }

# column NORMAL QUICK LONG: the number that this run takes
column() {
    if [ -n "${LONG:-}" ]; then set -- "$3"; elif [ -n "${QUICK:-}" ]; then set -- "$2"; fi
    echo "$1"
}

# made FOLDER NAME... VARIABLE=..: builds the programs that are wanted there
made() {
    place=$1 list=
    shift
    while [ $# -gt 0 ] && [ "${1#*=}" = "$1" ]; do
        ! wanted "$1" || list="$list $place/torture/torture_$1"
        shift
    done
    # shellcheck disable=SC2086  # lists of words
    [ -z "$list" ] || $make -s $jobs BUILD="$place" "$@" $list && return
    echo '0 passed, 1 failed, 0 skipped'
    exit 1
}

# attempt SECONDS NAME COMMAND...: runs it, for so long at most, and prints what became of it
attempt() {
    limit=$1 name=$2 start=$(date +%s) word=PASS
    shift 2
    ! have timeout || set -- timeout -k 10 "$limit" "$@"
    "$@" || word="FAIL (status $?)"
    if [ "$word" = PASS ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$word $name, $(($(date +%s) - start)) s"
}

# torture FOLDER SECONDS NAME CASES...: the program NAME that was built there; cases as of `column`
torture() {
    place=$1 limit=$2 name=$3
    shift 3
    ! wanted "$name" || attempt "$limit" "$name" ${runner:-} "$place/torture/torture_$name" \
        --cases "$(column "$@")" --seed "$seed" --folder "$folder"
}

# A fuzzer of tests/fuzz that reads files: as many runs as make 10 million with the others.
fuzzer() {
    name=fuzz_$1 out=$build/torture/fuzz_$1
    wanted "$name" || return 0
    mkdir -p "$out/corpus"
    clang -std=c11 -O1 -gline-tables-only -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=all -Isrc -DMPTRAIN_STATIC -DMPTRAIN_NO_SIMD \
        -DMPTRAIN_HEADER_FILE='"mptrain.h"' "tests/fuzz/$name.c" -lm -lpthread -o "$out/fuzz" ||
        { failed=$((failed + 1)) && return; }
    attempt 36000 "$name" "$out/fuzz" -runs="${FUZZ_RUNS:-3400000}" -seed="$seed" -timeout=20 \
        -rss_limit_mb=2048 -max_len=512 -verbosity=0 -artifact_prefix="$out/" "$out/corpus"
}

# What is too slow for every day: arbitrary input; processes and threads under the thread sanitizer
# and under valgrind, which knows AVX2 and nothing above.
nightly() {
    if have clang; then
        for name in weights idx data; do fuzzer $name; done
        threads=$build/torture/threads flags='-gline-tables-only -fsanitize=thread'
        made "$threads" resumes threads CC=clang CFLAGS="-O1 $flags" LDFLAGS="$flags"
        ! setarch -R true 2>/dev/null || runner='setarch -R'
        torture "$threads" 7200 resumes 100 100 "${THREAD_RUNS:-100}"
        torture "$threads" 7200 threads 400 400 "${THREAD_RUNS:-400}"
        runner=
    else
        echo 'skipped: the fuzzers and the thread sanitizer need clang'
        skipped=$((skipped + 2))
    fi
    if have valgrind; then
        made "$build" memory threads
        runner='valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite'
        export MPTRAIN_ISA=avx2
        torture "$build" 7200 memory 60 60 60
        torture "$build" 7200 threads 20 20 20
        torture "$build" 7200 resumes 10 10 10
        unset MPTRAIN_ISA
        runner=
    else
        echo 'skipped: there is no valgrind'
        skipped=$((skipped + 1))
    fi
}

mkdir -p "$folder"
made "$build" kills power resumes
torture "$build" 600 kills 400 40 2000
torture "$build" 600 power 1000000 50000 20000000
torture "$build" 900 resumes 240 20 1200

# With the address and the undefined behaviour sanitizer. stb_image.h, which is in the library where
# it is found, has arithmetic that may wrap.
cc=clang lines=-gline-tables-only with=-DMPTRAIN_NO_SIMD sanitized=$build/torture/sanitized
have clang || { cc=gcc && lines=-g; }
flags="$lines -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
if echo 'int main(void) { return 0; }' | $cc $flags -x c - -o "$folder/probe" 2>/dev/null; then
    for header in stb/stb_image.h stb_image.h; do
        ! echo "#include <$header>" | $cc -E - >/dev/null 2>&1 ||
            with='-DMPTRAIN_NO_SIMD -DMPTRAIN_STB_IMAGE -DMPTRAIN_STB_IMAGE_IMPLEMENTATION'
    done
    made "$sanitized" memory files io threads CC=$cc LDFLAGS="$flags" CPPFLAGS="$with" \
        CFLAGS="-O1 $flags -fwrapv -fno-sanitize=signed-integer-overflow"
    torture "$sanitized" 600 memory 100000 100 100000
    torture "$sanitized" 900 files 1000000 2000 1000000
    torture "$sanitized" 900 io 1000000 2 1000000
    torture "$sanitized" 900 threads 2000 60 20000
else
    echo "skipped: $cc has no sanitizers"
    skipped=$((skipped + 1))
fi
rm -f "$folder/probe"
[ -z "${LONG:-}" ] || nightly

rmdir "$folder" 2>/dev/null
echo "torture: $(($(date +%s) - began)) s, seed $seed"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
