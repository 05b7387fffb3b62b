#!/bin/sh
# Builds programs that run CUDA kernels on the CPU:
#     build.sh OUT "FLAGS" FILE...              a program of .cu, .c, .cpp and .o
#     build.sh OUT.o "FLAGS" FILE               one object of it
#     build.sh --simulator FOLDER "FLAGS"       prints the simulator's objects, to be linked first
#     build.sh --rewrite OUT FILE.cu            the C++ that is compiled in place of a .cu
#     build.sh --nvcc "FLAGS" ... -c -o OUT.o FILE.cu    in place of nvcc in a call of make's
# FLAGS go to every compilation and to the link; -fsanitize=address or thread in them picks the
# simulator to match. CXX, CC (g++, gcc) and CUDA_HOME (/usr/local/cuda) are yours. Objects lie in
# OUT.parts; the simulator's stay in FOLDER/cudasim, beside OUT, until its sources change.
# CUDASIM_OBJECTS names another folder for them, that several builds can share.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cxx=${CXX:-g++} cc=${CC:-gcc} cuda=${CUDA_HOME:-/usr/local/cuda}
task=program
case $1 in
    --simulator)
        task=simulator folder=$2 flags=$3
        shift 3
        ;;
    --rewrite)
        task=rewrite out=$2 flags=
        shift 2
        ;;
    --nvcc)
        task=object flags="$2 -Isrc"
        while [ "$1" != -o ]; do shift; done
        out=$2
        shift 2
        ;;
    *)
        out=$1 flags=$2
        case $out in *.o) task=object ;; esac
        shift 2
        ;;
esac
[ $task = simulator ] || folder=$(dirname "$out")
simulator=${CUDASIM_OBJECTS:-$folder/cudasim}
if [ ! -e "$cuda/include/cuda_runtime.h" ]; then
    echo "build.sh: no CUDA toolkit in $cuda; CUDA_HOME names another place" >&2
    exit 2
fi

mode=plain define=
case " $flags " in
    *-fsanitize=*address*) mode=asan define=-DSIM_ASAN ;;
    *-fsanitize=*thread*) mode=tsan define=-DSIM_TSAN ;;
esac
# g++ puts red zones between variables of a section when it is told to; clang++ by itself.
[ $mode = asan ] && case $("$cxx" --version) in
    *clang*) ;;
    *) flags="$flags -fsanitize-sections=.cudasim_shared" ;;
esac

include="-I$here/include -isystem $cuda/include"
# Kernels load half2 through uint4; the device does not care what was stored there.
language='-std=c++17 -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas'

newer() { # newer FILE SOURCE...: whether FILE exists and no SOURCE is newer
    file=$1
    shift
    [ -e "$file" ] && [ -z "$(find "$@" -newer "$file")" ]
}

build_rewriter() {
    mkdir -p "$simulator"
    newer "$simulator/rewrite" "$here/rewrite.cpp" && return
    $cxx -std=c++17 -O1 -o "$simulator/rewrite.$$" "$here/rewrite.cpp"
    mv "$simulator/rewrite.$$" "$simulator/rewrite"
}

# Prints the simulator's objects. They are built without sanitizers.
build_simulator() {
    mkdir -p "$simulator"
    for part in execute runtime cublaslt; do
        object=$simulator/$part-$mode.o
        if ! newer "$object" "$here/$part.cpp" "$here"/*.h "$here"/include/*.h; then
            # shellcheck disable=SC2086  # lists of words
            $cxx -std=c++17 -g -O3 -fno-strict-aliasing -ffp-contract=off $define $include \
                -c "$here/$part.cpp" -o "$object.$$"
            mv "$object.$$" "$object"
        fi
        echo "$object"
    done
}

# compile FILE OBJECT: with the flags of the program under test
compile() {
    # shellcheck disable=SC2086  # lists of words
    case $1 in
        *.cu)
            build_rewriter
            "$simulator/rewrite" "$1" >"$2.cpp"
            $cxx $language $include -iquote "$(dirname "$1")" $flags -c "$2.cpp" -o "$2"
            ;;
        *.cpp) $cxx $language $include $flags -c "$1" -o "$2" ;;
        *.c) $cc -std=c11 -isystem "$cuda/include" $flags -c "$1" -o "$2" ;;
        *) echo "build.sh: what is $1?" >&2 && exit 2 ;;
    esac
}

case $task in
    simulator) build_simulator ;;
    object) compile "$1" "$out" ;;
    rewrite)
        build_rewriter
        "$simulator/rewrite" "$1" >"$out"
        ;;
    program)
        objects=$(build_simulator)
        mkdir -p "$out.parts"
        for file in "$@"; do
            object=$out.parts/$(basename "$file").o
            case $file in
                *.o) object=$file ;;
                *) compile "$file" "$object" ;;
            esac
            objects="$objects $object"
        done
        # shellcheck disable=SC2086  # lists of words
        $cxx $flags -o "$out" $objects -lpthread -lm -ldl
        ;;
esac
