#!/bin/sh
# `make coverage`: which branches of src/ the suite takes, by room.
#   coverage.sh BUILD            builds the suite in BUILD with gcc --coverage, runs it, reports
#   ROOM=core/autograd.c           lists that room's branches that no test takes, from the last run
#   KEEP=1                       adds to what was counted before instead of beginning anew
#   TESTS="tests/test_idx.c"     runs these only, and no examples
#   LEVELS=                      runs at no second CPU level
#   JOBS=2  CC=gcc  GCOV=gcov
# Counted are the branches of the library as an unconfigured build has it, at -O0, where each leaf
# of a condition is two branches and each case of a switch is one. A macro that makes functions is
# counted in each of them. Taken is what any test program or example takes, at any CPU level of
# this machine, heavy tests aside. The rest may stand in coverage_exceptions.txt, with a reason;
# BUILD/untaken.txt has all others. Ends badly when a test fails or less than 90 % are taken,
# exceptions aside.
set -u
export LC_ALL=C
build=$1
here=$(dirname "$0")
cc=${CC:-gcc} gcov=${GCOV:-gcov} jobs=${JOBS:-2} least=90

# What would take many minutes at -O0 is left out: what trains long, AMX emulated, bits compared.
tests() {
    if [ -n "${TESTS:-}" ]; then echo "$TESTS"; return; fi
    grep -L 'heavy test' tests/test_*.c tests/api_*.c |
        grep -v -e test_gemm_emulated -e test_determinism | tr '\n' ' '
}
run_suite() { # run_suite ARGUMENT...: of make
    MPTRAIN_EXHAUSTIVE=1000003 MAKEFLAGS= make -k -j"$jobs" BUILD="$build" CC="$cc" UNITS=1 \
        CFLAGS='-O0 --coverage -fprofile-update=atomic' LDFLAGS=--coverage \
        CPPFLAGS="-DMPT__FORCE_INLINE=inline" TESTS="$(tests)" ${TESTS:+EXAMPLES=} "$@" test
}

# The levels below the machine's own, for the tests of what a level has.
lower_levels() {
    grep -qw avx512_bf16 /proc/cpuinfo 2>/dev/null && echo avx512
    grep -qw avx512bw /proc/cpuinfo 2>/dev/null && echo avx2
    echo ref
}
lower_tests() {
    if [ -n "${TESTS:-}" ]; then echo "$TESTS"; return; fi
    ls tests/api_golden_ops.c tests/api_optim.c tests/api_conv.c tests/api_norm.c \
        tests/api_attention.c tests/api_resize.c tests/api_fp8.c tests/test_cpu_ref.c \
        tests/test_gemm.c tests/test_launch.c tests/test_simd.c | tr '\n' ' '
}

# Prints `room function line ordinal of times |source` for each branch of the library object.
# Other programs hold the implementation, too: a line of theirs that has as many branches in the
# same function adds its counts.
gather() {
    for notes in "$build/mptrain.gcno" "$build"/tests/*.gcno "$build"/*.gcno; do
        [ "$notes" = "$build/mptrain.gcno" ] || [ -f "${notes%.gcno}.gcda" ] || continue
        echo "OBJECT $notes"
        "$gcov" -t -b -c "$notes" 2>/dev/null
    done | awk '
        function flush() { # what the last line of source had
            if (at != "" && object == 1) { count[at] = n; text[at] = source; order[++lines] = at }
            if (at != "" && count[at] == n) for (i = 1; i <= n; i++) times[at, i] += taken[i]
            n = 0; at = ""
        }
        $1 == "OBJECT" { flush(); if (!($2 in seen)) object++; seen[$2] = 1; next }
        /^ *-: *0:Source:/ {
            flush(); room = $0; sub(/.*:Source:/, "", room)
            inside = sub(/^(.*\/)?src\//, "", room) && room != "mptrain.h"; next
        }
        !inside { next }
        /^function / { flush(); name = $2; next }
        /^branch/ {
            if (at == "") at = room " " name " " line
            taken[++n] = $3 == "taken" ? $4 + 0 : 0; next
        }
        /^ *[-#=0-9*]+: *[0-9]+:/ {
            flush(); split($0, part, ":"); line = part[2] + 0
            source = $0; sub(/^[^:]*:[^:]*:[ \t]*/, "", source)
        }
        END {
            flush()
            for (k = 1; k <= lines; k++) for (i = 1; i <= count[order[k]]; i++)
                print order[k], i, count[order[k]], times[order[k], i] + 0, "|" text[order[k]]
        }' | sort -k1,1 -k3,3n -k2,2 -k4,4n >"$build/branches.txt"
}

# Exceptions are lines `room | function | part of the source line | reason`; a function may end in
# an asterisk, and so may stand for all that begin so; a part may be empty.
report() {
    awk -v least="$least" -v untaken="$build/untaken.txt" '
        function excepted(   e, start) {
            for (e = 1; e <= exceptions; e++) {
                if (x_room[e] != $1) continue
                start = x_function[e]
                if (sub(/\*$/, "", start) ? index($2, start) != 1 : $2 != start) continue
                if (x_part[e] != "" && !index($0, x_part[e])) continue
                x_used[e]++
                return 1
            }
            return 0
        }
        function percent(a, b) { return b ? 100 * a / b : 100 }
        function row(name, all, taken, out) {
            printf "%-22s %8d %8d %7.1f %8d %7.1f\n", name, all, taken, percent(taken, all), out,
                percent(taken, all - out)
        }
        FNR == NR {
            if ($0 ~ /^#/ || $0 !~ /\|/) next
            split($0, field, / *\| */)
            exceptions++
            x_room[exceptions] = field[1]; x_function[exceptions] = field[2]
            x_part[exceptions] = field[3]; x_line[exceptions] = $0
            if (field[4] == "") { print "an exception without a reason: " $0; bad = 1 }
            next
        }
        {
            if (!($1 in all)) rooms[++n] = $1
            all[$1]++
            if ($6 > 0) taken[$1]++
            else if (excepted()) out[$1]++
            else {
                source = $0; sub(/^[^|]*\|/, "", source)
                printf "%s:%d: %s, branch %d of %d: %s\n", $1, $3, $2, $4, $5, source >untaken
            }
        }
        END {
            printf "%-22s %8s %8s %7s %8s %7s\n", "room", "branches", "taken", "%", "excepted", "%"
            for (k = 1; k <= n; k++) {
                r = rooms[k]; row(r, all[r], taken[r], out[r])
                a += all[r]; t += taken[r]; o += out[r]
            }
            row("all", a, t, o)
            for (e = 1; e <= exceptions; e++)
                if (!x_used[e]) print "this exception is of no use here: " x_line[e]
            if (percent(t, a - o) < least) { print "less than " least " % are taken"; bad = 1 }
            exit bad
        }' "$here/coverage_exceptions.txt" "$build/branches.txt"
}

status=0
if [ -z "${ROOM:-}" ] || [ ! -f "$build/branches.txt" ]; then
    [ -n "${KEEP:-}" ] || find "$build" -name '*.gcda' -exec rm -f {} + 2>/dev/null
    run_suite || status=1
    for level in ${LEVELS-$(lower_levels)}; do
        echo "== MPTRAIN_ISA=$level"
        MPTRAIN_ISA=$level run_suite EXAMPLES= TESTS="$(lower_tests)" || status=1
    done
    gather
fi
rm -f "$build/untaken.txt"
report >"$build/coverage.txt" || status=1
if [ -n "${ROOM:-}" ]; then
    grep "^$ROOM:" "$build/untaken.txt"
    grep -E "^(room|$ROOM) " "$build/coverage.txt"
else
    cat "$build/coverage.txt"
fi
exit $status
