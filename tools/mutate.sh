#!/bin/sh
# `make mutate`: would a test notice? Breaks the library in one small place at a time (mutate.c says
# how) and runs the suite, the tests that are about the broken room first, until one fails.
#   mutate.sh BUILD MUTATE N SEED   N mutants, drawn from SEED, in a copy of the project in BUILD
#   ONLY='src/ground/parallel.c'        breaks only these      FIRST=40  begins with mutant 40
#   JOBS=2  CC=cc
# A mutant that does not compile, or whose object is the same to the byte, is none: the next is
# taken. The last line is "N of M noticed"; before it stands each survivor with its edit, and
# `MUTATE SEED NUMBER out.c FILE...` makes it again. A mutant takes half a minute to three. Whether
# the suite passes unbroken is asked once for the same sources: a run that goes on does not ask.
set -u
export LC_ALL=C
build=$1 mutate=$2 wanted=$3 seed=$4
jobs=${JOBS:-2} cc=${CC:-cc} number=${FIRST:-1}
tree=$build/tree
export MPTRAIN_TEST_SECONDS=${MPTRAIN_TEST_SECONDS:-150}

# A broken library may write where it should not: root gives its rights away first.
as_nobody=
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --regid=65534 --clear-groups true 2>/dev/null; then
    as_nobody='setpriv --reuid=65534 --regid=65534 --clear-groups'
fi

in_tree() { # in_tree ARGUMENT...: of make, in the copy
    # shellcheck disable=SC2086  # a command and its options
    (cd "$tree" && MAKEFLAGS='' MPTRAIN_TEST_TMP='' $as_nobody nice \
        make -j"$jobs" CC="$cc" CFLAGS=-O1 TEST_CFLAGS=-O1 "$@") >"$build/log" 2>&1
}

# Tests that hold the implementation are compiled anew for each mutant, so they come last.
holds() { (cd "$tree" && grep -lE '^.define MPTRAIN_IMPLEMENTATION' $1); }
lacks() { (cd "$tree" && grep -LE '^.define MPTRAIN_IMPLEMENTATION' $1); }

# The tests that are about a room: those that share a word with its name, and a few more.
related() {
    for word in $(echo "$1" | sed 's/^src//; s/\.[a-z]*$//' | tr '_/' ' '); do
        case $word in
            cpu) echo test_cpu_ref api_golden_ops ;;
            optimizer | update | average | schedule) echo api_optim api_golden_train ;;
            core) echo test_lifetime api_edges ;;
            ops) echo test_gradients api_golden_ops ;;
            nn) echo api_modules api_fold ;;
            loader | idx | array | dataset) echo api_data ;;
            image | transform) echo api_images ;;
            table) echo api_tables ;;
            pool) echo api_conv ;;
        esac
        (cd "$tree/tests" && ls | sed -n "s/^\(test_.*$word.*\|api_.*$word.*\)\.c\$/\1/p")
    done | tr ' ' '\n' | awk '!seen[$1]++ { print "tests/" $1 ".c" }'
}

notices() { # notices TESTS: whether one of these fails
    [ -n "$1" ] || return 1
    in_tree test EXAMPLES= TESTS="$(echo $1)" && return 1
    by=$(sed -n 's/^\([a-z_0-9]*\): .*, [1-9][0-9]* failed.*/\1/p' "$build/log" | tr '\n' ' ')
    return 0
}

mkdir -p "$tree"
git ls-files -co --exclude-standard -z | xargs -0 tar -cf - | tar -xf - -C "$tree"
[ -z "$as_nobody" ] || chown -R 65534:65534 "$tree"
objects='build/mptrain_rest.o build/mptrain_cpu.o'
both() { (cd "$tree" && cat $objects); }
in_tree $objects || { cat "$build/log"; exit 1; }
both >"$build/unbroken.o"
heavy=$(cd "$tree" && grep -l 'heavy test' tests/test_*.c tests/api_*.c)
everything=$(cd "$tree" && ls tests/test_*.c tests/api_*.c | grep -vF "$heavy")
sources=$(cd "$tree" && find src tests -type f | sort | xargs cat | cksum)
if [ "$(cat "$build/unbroken.sum" 2>/dev/null)" != "$sources" ]; then
    if ! in_tree -k test TESTS="$(echo $everything)"; then
        echo 'the suite fails before anything is broken:'
        tail -n 30 "$build/log"
        exit 1
    fi
    echo "$sources" >"$build/unbroken.sum"
fi

rooms=${ONLY:-$(find src -name '*.c' -o -name '*.inl' | sort)}
made=0 noticed=0
: >"$build/survivors"
while [ "$made" -lt "$wanted" ]; do
    # shellcheck disable=SC2086  # a list of files
    what=$("$mutate" "$seed" "$number" "$build/mutant" $rooms) || exit 1
    id=$number number=$((number + 1)) room=${what%%:*} by=
    cat "$build/mutant" >"$tree/$room"
    if in_tree $objects && ! both | cmp -s - "$build/unbroken.o"; then
        made=$((made + 1))
        first=$(related "$room")
        rest=$(echo "$everything" | grep -vxF "${first:-none}")
        if notices "$(lacks "$first")" || notices "$(holds "$first")" ||
            notices "$(lacks "$rest")" || notices "$(holds "$rest")"; then
            noticed=$((noticed + 1))
            echo "$id noticed by ${by:-the build of a test} $what"
        else
            echo "$id SURVIVED $what" | tee -a "$build/survivors"
        fi
    fi
    cat "$room" >"$tree/$room"
done
[ ! -s "$build/survivors" ] || { echo 'survivors:'; cat "$build/survivors"; }
echo "$noticed of $made noticed"
