#!/bin/sh
# What the README tells users of NVIDIA GPUs to do by hand, done in a folder that holds mptrain.h,
# mptrain_cuda.cu and the program of its quick start, and nothing else: it compiles, links and, with
# a GPU or without, learns. Then one of the two files of another version: a compile error that says
# what to do. Without nvcc it says so and checks nothing; CUDA_HOME as for check_ptx.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1
top=$PWD
cuda=${CUDA_HOME:-/usr/local/cuda}
if [ ! -x "$cuda/bin/nvcc" ]; then
    echo "skip by_hand: lacks nvcc in $cuda/bin"
    exit 0
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
PATH=$cuda/bin:$PATH
export LD_LIBRARY_PATH="$cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
passed=0 failed=0

verdict() { # verdict STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)) && echo "ok $2"; else
        failed=$((failed + 1))
        echo "FAIL $2"
        tail -n 20 "$folder/log" | sed 's/^/    | /'
    fi
}

fresh() { # a folder with the three files
    mkdir -p "$folder/$1" && cd "$folder/$1" || exit 1
    cp "$top/mptrain.h" "$top/mptrain_cuda.cu" . && cp "$top/tests/quick_start.h" main.c
}

# The three lines below the heading.
lines=$(sed -n '/^## NVIDIA GPUs/,/^## /s/^    \(nvcc\|cc\) /\1 /p' README.md)
[ "$(echo "$lines" | wc -l)" -eq 3 ]
verdict $? 'the README has three lines'
fresh clean
printf 'set -e\n%s\n' "$lines" >../lines.sh
sh ../lines.sh >../log 2>&1
verdict $? 'they compile and link'
ls -A | sort | tr '\n' ' ' >../files
[ "$(cat ../files)" = 'a.out main.c main.o mptrain.h mptrain_cuda.cu mptrain_cuda.o ' ]
verdict $? 'they leave two objects and a program'
./a.out >../log 2>&1 && grep -q '^loss 0\.0[0-9]*$' ../log
verdict $? 'the program learns'

# other NAME FILE EDIT: with FILE edited to another version
other() {
    fresh "$1"
    sed "$3" "$2" >edited
    cmp -s edited "$2" && echo "no version in $2" >../log && verdict 1 "$1"
    mv edited "$2"
    if nvcc -O2 -c mptrain_cuda.cu >../log 2>&1; then verdict 1 "$1"; else
        grep -q 'error.*of different versions; copy both from one release' ../log
        verdict $? "$1"
    fi
}
other 'another mptrain.h' mptrain.h 's/\(#define MPTRAIN_VERSION_MINOR\) .*/\1 77/'
other 'another mptrain_cuda.cu' mptrain_cuda.cu 's/MPTRAIN_VERSION != [0-9]*/MPTRAIN_VERSION != 7/'
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
