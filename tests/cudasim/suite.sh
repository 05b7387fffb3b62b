#!/bin/sh
# Builds the library with its CUDA backend on the simulator and runs make with it:
#     suite.sh BUILD plain|asan|tsan MAKE-ARGUMENTS...
#     CUDASIM_ORDER=1 sh tests/cudasim/suite.sh build/cudasim plain test EXAMPLES= TESTS=tests/x.c
set -eu
build=$1 mode=$2
shift 2
here=$(dirname "$0")
compiler=gcc linker=g++ flags='-O1 -g'
case $mode in
    plain) ;;
    asan) compiler=clang linker=clang++ flags="$flags -fsanitize=address,undefined \
        -fno-sanitize-recover=all" ;;
    tsan) compiler=clang linker=clang++ flags="$flags -fsanitize=thread" ;;
    *) echo "suite.sh: what is $mode?" >&2 && exit 2 ;;
esac
mkdir -p "$build/tests/cudasim"
make -s BUILD="$build" "$build/mptrain_cuda.cu"
object=$build/cuda.o
if ! [ -e "$object" ] || [ -n "$(find src "$here"/*.sh "$here"/*.cpp "$here/include" \
    -newer "$object")" ]; then
    CXX=$linker CC=$compiler sh "$here/build.sh" "$object" "$flags -Isrc" "$build/mptrain_cuda.cu"
fi
simulator=$(CXX=$linker sh "$here/build.sh" --simulator "$build" "$flags" | tr '\n' ' ')
make -j2 BUILD="$build" CC="$compiler" LINK="$linker" CFLAGS="$flags" TEST_CFLAGS="$flags" \
    LDFLAGS="$flags" CPPFLAGS=-DMPTRAIN_CUDA EXTRA="$simulator $object" \
    LDLIBS='-lm -lpthread -ldl -lstdc++' "$@"
