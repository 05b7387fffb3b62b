#!/bin/sh
# check_instructions.sh PROGRAM FIGURES COMPILER FLAGS [update]: counts the instructions of fixed
# pieces of work (count_steps.c) with callgrind, at the levels that it knows, and compares them with
# the committed figures: more than TOLERANCE % above one is a regression, as much below it asks for
# new figures. `update` writes the figures instead.
# Figures belong to one compiler, its major version and its flags: others print theirs and are
# skipped by name.
set -u
program=$1 figures=$2 compiler=$3 flags=$4 update=${5:-}
TOLERANCE=3
levels='null ref avx2'
work=$program.counts

skip() {
    echo "skipped: instruction counts: $1"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
}

command -v valgrind >/dev/null 2>&1 || skip 'no valgrind'
[ "$(uname -m)" = x86_64 ] || skip "the figures are of x86_64, this is $(uname -m)"
grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo || levels='null ref'
still=
setarch -R true 2>/dev/null && still='setarch -R'

# One line per piece, "LEVEL NAME INSTRUCTIONS". An empty environment fixes the addresses.
count() {
    rm -f "$work.$1".*
    # shellcheck disable=SC2086
    env -i PATH="$PATH" MPTRAIN_ISA="$1" $still valgrind -q --tool=callgrind \
        --callgrind-out-file="$work.$1" --zero-before=counted_run --dump-after=counted_run \
        "$program" >"$work.$1.names" || { cat "$work.$1.names"; return 1; }
    number=0
    while read -r _ name; do
        number=$((number + 1))
        echo "$1 $name $(sed -n 's/^summary: //p' "$work.$1.$number")"
    done <"$work.$1.names"
}

: >"$work"
for level in $levels; do
    count "$level" >>"$work" || { echo "FAIL $level: the program to count failed"; exit 1; }
done

identity="$($compiler --version 2>/dev/null | head -n 1)"
version="$($compiler -dumpversion 2>/dev/null)"
case $identity in *clang*) family=clang ;; *) family=gcc ;; esac
now="$family ${version%%.*} $flags"
if [ "$update" = update ]; then
    {
        echo '# Instructions of fixed pieces of work at each level, counted by callgrind: compared by'
        echo '# make check-instructions, rewritten by make check-instructions UPDATE=1.'
        echo "# $identity"
        echo "compiler $now"
        cat "$work"
    } >"$figures"
    echo "written: $figures"
    exit 0
fi

committed=$(sed -n 's/^compiler //p' "$figures")
if [ "$committed" != "$now" ]; then
    cat "$work"
    skip "the figures are of $committed; this is $now"
fi
awk -v tolerance=$TOLERANCE -v levels=" $levels " '
    FNR == 1 { file++ }
    /^#/ || $1 == "compiler" { next }
    file == 1 { if (index(levels, " " $1 " ")) expected[$1 " " $2] = $3; next }
    {
        key = $1 " " $2
        if (!(key in expected)) { word = "FAIL new"; change = 0 }
        else {
            change = 100 * ($3 / expected[key] - 1)
            word = change > tolerance ? "FAIL more" : change < -tolerance ? "FAIL fewer" : "ok"
        }
        printf "%-24s %12d %+7.2f %%  %s\n", key, $3, change, word
        if (word == "ok") passed++; else failed++
        fewer += word == "FAIL fewer"
        delete expected[key]
    }
    END {
        for (key in expected) { print "FAIL " key " was not counted"; failed++ }
        if (fewer) print "fewer instructions: make check-instructions UPDATE=1 takes the new figures"
        printf "%d passed, %d failed, 0 skipped\n", passed, failed
        exit failed > 0
    }' "$figures" "$work"
