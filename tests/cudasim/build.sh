#!/bin/sh
# Builds a program that runs CUDA kernels on the CPU:
#     build.sh OUT "FLAGS" FILE...     .cu, .c, .cpp, .o; OUT.o instead compiles one file only
# FLAGS go to every compilation of FILEs and to the link; -fsanitize=address or thread in them picks
# the simulator to match. CXX, CC (g++, gcc) and CUDA_HOME (/usr/local/cuda) are yours; objects lie
# in OUT.parts, the simulator's in cudasim/ beside OUT and stay until its sources change.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1 flags=$2
shift 2
cxx=${CXX:-g++} cc=${CC:-gcc} cuda=${CUDA_HOME:-/usr/local/cuda}
if [ ! -e "$cuda/include/cuda_runtime.h" ]; then
    echo "build.sh: no CUDA toolkit in $cuda; CUDA_HOME names another place" >&2
    exit 2
fi

mode=plain define=
case " $flags " in
    *-fsanitize=*address*) mode=asan define=-DSIM_ASAN ;;
    *-fsanitize=*thread*) mode=tsan define=-DSIM_TSAN ;;
esac
# Red zones between variables in static shared memory.
[ $mode = asan ] && case $("$cxx" --version) in
    *clang*) ;;
    *) flags="$flags -fsanitize-sections=cudasim_shared" ;;
esac

include="-I$here/include -isystem $cuda/include"
# Kernels load half2 through uint4; the device does not care what was stored there.
language='-std=c++17 -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas'
simulator=$(dirname "$out")/cudasim
mkdir -p "$simulator"

newer() { # newer FILE SOURCE...: whether FILE exists and no SOURCE is newer
    file=$1
    shift
    for source in "$@"; do
        [ "$file" -nt "$source" ] || return 1
    done
}

# compile FILE OBJECT: with the flags of the program under test
compile() {
    # shellcheck disable=SC2086  # lists of words
    case $1 in
        *.cu)
            "$simulator/rewrite" "$1" >"$2.cpp"
            $cxx $language $include -I"$(dirname "$1")" $flags -c "$2.cpp" -o "$2"
            ;;
        *.cpp) $cxx $language $include $flags -c "$1" -o "$2" ;;
        *.c) $cc -std=c11 -isystem "$cuda/include" $flags -c "$1" -o "$2" ;;
        *) echo "build.sh: what is $1?" >&2 && exit 2 ;;
    esac
}

if ! newer "$simulator/rewrite" "$here/rewrite.cpp"; then
    $cxx -std=c++17 -O1 -o "$simulator/rewrite.$$" "$here/rewrite.cpp"
    mv "$simulator/rewrite.$$" "$simulator/rewrite"
fi
case $out in *.o)
    compile "$1" "$out"
    exit
    ;;
esac

objects=
for part in execute runtime; do
    object=$simulator/$part-$mode.o
    if ! newer "$object" "$here/$part.cpp" "$here"/*.h "$here"/include/*.h "$here/build.sh"; then
        # shellcheck disable=SC2086  # lists of words
        $cxx -std=c++17 -g -O2 -fno-strict-aliasing -ffp-contract=off $define $include \
            -c "$here/$part.cpp" -o "$object.$$"
        mv "$object.$$" "$object"
    fi
    objects="$objects $object"
done
mkdir -p "$out.parts"
for file in "$@"; do
    case $file in
        *.o) objects="$objects $file" ;;
        *)
            object=$out.parts/$(basename "$file").o
            compile "$file" "$object"
            objects="$objects $object"
            ;;
    esac
done
# shellcheck disable=SC2086  # lists of words
$cxx $flags -o "$out" $objects -lpthread -lm -ldl
