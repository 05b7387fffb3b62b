#!/bin/sh
# What `make torture` runs:  run.sh BUILD. QUICK=1 is for every day, LONG=1 for a night; SEED and
# ONLY choose. Each program prints a line of figures; the last line of all says how many passed.
# LONG=1 notes each part in BUILD/torture/long, so that a run which was broken off goes on behind what
# passed.
# It writes the report BUILD/torture/long.md; with WRITE=1 that becomes
# tools/bench/results/torture-long.md, too. SHARE=100 takes the hundredth part of each number.
set -u
build=$1 seed=${SEED:-1} make=${MAKE:-make} began=$(date +%s) passed=0 failed=0 skipped=0
folder=$build/torture/tmp notes=$build/torture/long under= order=
here=$(dirname "$0")
if [ -n "${WRITE:-}" ] && [ -n "${ONLY:-}${SHARE:-}" ]; then
    echo 'make torture-long: WRITE=1 is for all of it, without ONLY and SHARE' >&2
    exit 2
fi
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
case "${MAKEFLAGS:-}" in *jobserver*) jobs= ;; *) jobs=-j2 ;; esac

have() { command -v "$1" >/dev/null 2>&1; }
wanted() { case " ${ONLY:-$1} " in *" $1 "*) return 0 ;; esac; return 1; }

has_pictures() {
    for header in stb/stb_image.h stb_image.h; do
        echo "#include <$header>" | $cc -E - >/dev/null 2>&1 && return
    done
    return 1
}

# column NORMAL QUICK LONG: the number that this run takes
column() {
    if [ -n "${LONG:-}" ]; then
        set -- $((($3 + ${SHARE:-1} - 1) / ${SHARE:-1}))
    elif [ -n "${QUICK:-}" ]; then
        set -- "$2"
    fi
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
    limit=$1 name=$2$under start=$(date +%s) word=PASS
    shift 2
    key="$commit $*" note=$notes/$(echo "$name" | tr -c 'a-z0-9\n' _)
    order="$order $note"
    [ -z "${LONG:-}" ] || limit=$((limit * 20))
    if [ -n "${LONG:-}" ] && [ "$(head -n 1 "$note" 2>/dev/null)" = "$key" ]; then
        passed=$((passed + 1))
        echo "PASS $name, of the run before"
        return
    fi
    ! have timeout || set -- timeout -k 10 "$limit" "$@"
    rm -f "$folder/status"
    { "$@" 2>&1 || echo $? >"$folder/status"; } | tee "$folder/said"
    [ ! -f "$folder/status" ] || word="FAIL (status $(cat "$folder/status"))"
    if [ "$word" = PASS ]; then passed=$((passed + 1)); else failed=$((failed + 1)) key=failed; fi
    start=$(($(date +%s) - start))
    echo "$word $name, $start s"
    if [ -n "${LONG:-}" ]; then
        printf '%s\n| %s | %s | %s | %s |\n' "$key" "$name" "$(figures)" $start "$word" >"$note"
        report
    fi
    rm -f "$folder/status" "$folder/said"
}

# What a program's last line says that it did, or how many inputs a fuzzer ran.
figures() {
    sed -n -e 's/^[a-z]*: \([0-9]* cases, .*\), seed .*/\1/p' \
        -e 's/^flipped_bits.* \([0-9]* named, .*\); .*/\1/p' \
        -e 's/^stat::number_of_executed_units: *\(.*\)/\1 runs/p' "$folder/said" | tail -n 1
}

# What there is of the report: the parts so far, in the order of the run.
report() {
    cat >"$build/torture/long.md" <<END
# Torture: the long run

Written by \`make torture-long WRITE=1\`. Machines differ and are shared: no time is a claim.

- commit: $commit
- date: $(date -u +%Y-%m-%d); seed: $seed${SHARE:+; a share of 1/$SHARE of the numbers}
- machine: $(machine)

| what | how many | seconds | outcome |
|---|---|---|---|
$(for note in $order; do sed -n 2p "$note"; done)
END
}
machine() {
    model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
    echo "$(uname -sm)${model:+, $model}, $(getconf _NPROCESSORS_ONLN) cores"
}

# torture FOLDER SECONDS NAME CASES...: the program NAME that was built there; cases as of `column`
torture() {
    place=$1 limit=$2 name=$3
    shift 3
    ! wanted "$name" || attempt "$limit" "$name" ${runner:-} "$place/torture/torture_$name" \
        --cases "$(column "$@")" --seed "$seed" --folder "$folder"
}

# fuzzer NAME RUNS LENGTH FLAGS...: so many inputs of so many bytes at most, of tests/fuzz
fuzzer() {
    name=fuzz_$1 out=$build/torture/fuzz_$1 runs=$(column 0 0 "$2") length=$3
    wanted "$name" || return 0
    shift 3
    mkdir -p "$out/corpus"
    clang -std=gnu11 -O1 -gline-tables-only -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=all -Isrc -DMPTRAIN_STATIC -DMPTRAIN_NO_SIMD \
        -DMPTRAIN_HEADER_FILE='"mptrain.h"' "$@" "tests/fuzz/$name.c" -lm -lpthread \
        -o "$out/fuzz" ||
        { failed=$((failed + 1)) && return; }
    attempt 7200 "$name" "$out/fuzz" -runs="$runs" -seed="$seed" -timeout=20 \
        -rss_limit_mb=2048 -max_len="$length" -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="$out/" "$out/corpus"
}

# What is too slow for every day: arbitrary input; processes and threads under the thread sanitizer
# and under valgrind, which knows AVX2 and nothing above.
nightly() {
    if have clang; then
        for name in weights idx data; do fuzzer $name 3400000 512; done
        fuzzer flight 100000 64
        if has_pictures; then
            fuzzer pictures 300000 4096 -fwrapv -fno-sanitize=signed-integer-overflow
        else
            echo 'skipped: the pictures need stb_image.h'
            skipped=$((skipped + 1))
        fi
        threads=$build/torture/threads flags='-gline-tables-only -fsanitize=thread'
        made "$threads" resumes threads CC=clang CFLAGS="-O1 $flags" LDFLAGS="$flags"
        ! setarch -R true 2>/dev/null || runner='setarch -R'
        under=' under the thread sanitizer'
        torture "$threads" 7200 resumes 100 100 100
        torture "$threads" 7200 threads 400 400 400
        runner= under=
    else
        echo 'skipped: the fuzzers and the thread sanitizer need clang'
        skipped=$((skipped + 2))
    fi
    # Logs that this machine writes are read by another one, at the level whose bits are the same.
    if ! wanted far_flips; then
        :
    elif have qemu-aarch64 && have aarch64-linux-gnu-gcc; then
        far=$build/torture/aarch64 logs=$folder/logs
        $make -s $jobs BUILD="$far" CC=aarch64-linux-gnu-gcc "$far/tests/api_flight" || exit 1
        $make -s $jobs BUILD="$build" "$build/tests/api_flight" || exit 1
        rm -rf "$logs"
        mkdir -p "$logs"
        set -- env MPTRAIN_ISA=portable MPTRAIN_FLIGHT_LOGS="$logs" MPTRAIN_TEST_TMP="$folder" \
            MPTRAIN_FLIGHT_SEED="$seed" MPTRAIN_FLIGHT_FLIPS="$(column 100 100 100)"
        "$@" "$build/tests/api_flight" flipped_bits_are_named >/dev/null
        attempt 600 far_flips "$@" qemu-aarch64 -L /usr/aarch64-linux-gnu \
            "$far/tests/api_flight" flipped_bits_are_named
        rm -rf "$logs"
    else
        echo 'skipped: another machine needs qemu-aarch64 and aarch64-linux-gnu-gcc'
        skipped=$((skipped + 1))
    fi
    if have valgrind; then
        made "$build" memory threads
        runner='valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite'
        export MPTRAIN_ISA=avx2
        under=' under valgrind'
        torture "$build" 7200 memory 60 60 60
        torture "$build" 7200 threads 20 20 20
        torture "$build" 7200 resumes 10 10 10
        unset MPTRAIN_ISA
        runner= under=
    else
        echo 'skipped: there is no valgrind'
        skipped=$((skipped + 1))
    fi
}

mkdir -p "$folder" "$notes"
commit=
if [ -n "${LONG:-}" ]; then
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
    changes=$(git diff HEAD -- . ':!tools/bench/results' 2>/dev/null | cksum | cut -d ' ' -f 1)
    [ "$changes" = 4294967295 ] || commit="$commit with changes ($changes)"
fi
made "$build" kills power resumes
torture "$build" 600 kills 400 40 2000
torture "$build" 600 power 1000000 50000 20000000
torture "$build" 900 resumes 240 20 1200

# Bits flipped at random steps, of which the flight log names step and op. The suite flips a few.
if wanted flips; then
    $make -s $jobs BUILD="$build" "$build/tests/api_flight" || exit 1
    flips=$(column 1000 100 1000)
    attempt 600 flips env MPTRAIN_FLIGHT_FLIPS="$flips" MPTRAIN_FLIGHT_SEED="$seed" \
        MPTRAIN_TEST_TMP="$folder" "$build/tests/api_flight" flipped_bits_are_named
fi

# With the address and the undefined behaviour sanitizer. stb_image.h, which is in the library where
# it is found, has arithmetic that may wrap.
cc=clang lines=-gline-tables-only with=-DMPTRAIN_NO_SIMD sanitized=$build/torture/sanitized
have clang || { cc=gcc && lines=-g; }
flags="$lines -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
if echo 'int main(void) { return 0; }' | $cc $flags -x c - -o "$folder/probe" 2>/dev/null; then
    ! has_pictures ||
        with='-DMPTRAIN_NO_SIMD -DMPTRAIN_STB_IMAGE -DMPTRAIN_STB_IMAGE_IMPLEMENTATION'
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
if [ -n "${WRITE:-}" ] && [ -n "${LONG:-}" ]; then
    cp "$build/torture/long.md" "$here/../../tools/bench/results/torture-long.md"
fi
echo "torture: $(($(date +%s) - began)) s, seed $seed"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
