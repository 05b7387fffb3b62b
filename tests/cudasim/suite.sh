#!/bin/sh
# Builds the library with its CUDA backend on the simulator and runs make with it:
#     suite.sh BUILD plain|asan|tsan MAKE-ARGUMENTS...
#     CUDASIM_ORDER=1 sh tests/cudasim/suite.sh build/cudasim plain test EXAMPLES= TESTS=tests/x.c
set -eu
build=$1 mode=$2
shift 2
here=$(dirname "$0")
compiler=gcc linker=g++ flags='-O1 -g1' scalar= # -g takes half as long again
case $mode in
    plain) ;;
    # Not optimised: to compile it takes a third of the time, more than its running loses. Vectors of
    # the CPU would take most of it.
    asan) flags='-O0 -gline-tables-only -fsanitize=address,undefined -fno-sanitize-recover=all' ;;
    tsan) flags='-O1 -gline-tables-only -fsanitize=thread' ;;
    *) echo "suite.sh: what is $mode?" >&2 && exit 2 ;;
esac
[ "$mode" = plain ] || compiler=clang linker=clang++ scalar=-DMPTRAIN_NO_SIMD
mkdir -p "$build/tests/cudasim"
object=$build/mptrain_cuda.o
if [ -e "$object" ] &&
    [ -n "$(find "$here"/build.sh "$here"/rewrite.cpp "$here"/include -newer "$object")" ]; then
    rm "$object"
fi
simulator=$(CXX=$linker sh "$here/build.sh" --simulator "$build" "$flags" | tr '\n' ' ')
CXX=$linker make -j"${CUDASIM_JOBS:-$(nproc)}" BUILD="$build" CC="$compiler" LINK="$linker" \
    CFLAGS="$flags" TEST_CFLAGS="$flags" LDFLAGS="$flags" CPPFLAGS="-DMPTRAIN_CUDA $scalar" \
    EXTRA="$simulator $object" NVCC="sh $here/build.sh --nvcc '$flags'" \
    LDLIBS='-lm -lpthread -ldl -lstdc++' "$@"
