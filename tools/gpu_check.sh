#!/bin/sh
# gpu_check.sh: what only a machine with an NVIDIA GPU can show (make gpu-check). Unattended,
# without network, in parts that end after 8 minutes at the latest:
#     PART="build mnist"    those to run: build ops sanitizer mnist speed models limit worst, and
#                      beside PyTorch peers peers_mlp peers_gpt2 peers_vit peers_resnet
#     OPS="tests/x.c"  the tests of part ops, all that a GPU can run unless given
#     DATA=folder      MNIST as idx files (data/mnist, else the built-in digits)
#     SIM=1            a dry run on the CPU through tests/cudasim: every step, small sizes
# Each part leaves its lines in build/gpu/PART.md; the report of all parts that ran so far goes to
# tools/bench/results/gpu-CARD.md (SIM: build/cudasim/plain/report.md), a table of the targets at
# its end. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
all='build ops sanitizer mnist speed models limit worst peers peers_mlp peers_gpt2 peers_vit
    peers_resnet'
: "${PART:=$all}" "${SIM:=}"
: "${MAKE:=make}" "${PYTHON:=python3}"
export SIM DATA NVCC PYTHON
PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" # nvcc, where the path lacks it
out=build/gpu limit=480 # seconds of a part
if [ -n "$SIM" ]; then
    out=build/cudasim/plain limit=1200
    export MPTRAIN_STEPS=3 # of the digits
    export CUDASIM_OBJECTS="${CUDASIM_OBJECTS:-$PWD/build/cudasim/cudasim}"
fi
mkdir -p $out/tests/cudasim
jobs=$(nproc 2>/dev/null || echo 2)

good() { echo "ok    $*" | tee -a $out/verdicts; }
bad() { echo "FAIL  $*" | tee -a $out/verdicts; }
# Runs a command with its output in a log; says how it ended.
try() { # try NAME COMMAND...
    name=$1
    shift
    if "$@" >"$out/$name.log" 2>&1; then good "$name"; else
        bad "$name"
        tail -n 30 "$out/$name.log" | sed 's/^/      /'
        return 1
    fi
}

# The same make, with the library and every program built for the GPU or for the simulator.
build() {
    if [ -n "$SIM" ]; then
        sh tests/cudasim/suite.sh $out plain "$@"
    else
        nvcc=${NVCC:-nvcc}
        cuda=$(dirname "$(dirname "$(command -v "$nvcc")")")
        $MAKE -j"$jobs" BUILD=$out CPPFLAGS=-DMPTRAIN_CUDA EXTRA=$out/mptrain_cuda.o NVCC="$nvcc" \
            LDLIBS="-L$cuda/lib64 -Wl,-rpath,$cuda/lib64 -lcublasLt -lcudart_static -lstdc++ -ldl \
                -lrt -lm -lpthread" "$@"
    fi
}

part_build() {
    try build build $out/mnist $out/bench/device_speed $out/bench/device_models || return 1
    echo 'device: simulator' >$out/card
    if [ -z "$SIM" ]; then
        $out/bench/device_speed 1 cuda >$out/card.log 2>&1
        grep -m 1 '^device: ' $out/card.log | tee $out/card
        [ -s $out/card ] || bad "a GPU: $(head -n 1 $out/card.log)"
    fi
    {
        echo '## Machine'
        sed 's/^device: /- card: /' $out/card
        [ -n "$SIM" ] || nvidia-smi 2>&1 --query-gpu=driver_version,memory.total,clocks.max.sm \
            --format=csv,noheader | sed 's/^/- driver, memory, clock: /'
        ${NVCC:-nvcc} --version | sed -n 's/.*release \([0-9.]*\).*/- CUDA toolkit: \1/p'
        echo "- date: $(date +%Y-%m-%d)"
    } >$out/build.md
}

part_ops() {
    try ops build EXAMPLES= TESTS="${OPS:-$(sh tests/cudasim/tests.sh | tr '\n' ' ')}" test
    {
        echo '## Op suite on the device'
        grep -E '^[a-z_/]+: [0-9]+ passed' $out/ops.log | sed 's/^/- /'
    } >$out/ops.md
    [ -n "$SIM" ] || products
}

# The matrix products by themselves: each epilogue, dtype and layout; and attention on tensor cores
# against the other kernels. Not in the dry run: tests/cudasim/products.sh runs them in the
# simulator.
products() {
    nvcc=${NVCC:-nvcc} failed=0
    cuda=$(dirname "$(dirname "$(command -v "$nvcc")")")
    for test in products attention; do
        program=$out/tests/test_$test
        try ${test}_build "$nvcc" -std=c++17 -O1 -arch=native -I. -Isrc -o $program \
            tests/cudasim/test_$test.cu "-L$cuda/lib64" -Xlinker "-rpath,$cuda/lib64" -lcublasLt &&
            try $test $program || failed=1
    done
    return $failed
}

# All ops, and steps in graphs. The dry run runs the programs by themselves, once.
part_sanitizer() {
    echo '## compute-sanitizer' >$out/sanitizer.md
    if [ -z "$SIM" ] && ! command -v compute-sanitizer >/dev/null 2>&1; then
        echo '- not here' | tee -a $out/sanitizer.md
        return 0
    fi
    try sanitizer_build build EXAMPLES= TESTS='tests/api_golden_ops.c tests/api_capture.c' tests ||
        return 1
    tools='memcheck racecheck initcheck'
    [ -z "$SIM" ] || tools=memcheck
    for tool in $tools; do
        for program in api_golden_ops api_capture; do
            with="compute-sanitizer --tool $tool --error-exitcode 9"
            [ -z "$SIM" ] || with='env'
            # shellcheck disable=SC2086  # a list of words
            try "sanitizer_${tool}_$program" $with $out/tests/$program &&
                echo "- $tool, $program: clean" >>$out/sanitizer.md
        done
    done
}

# A number of a JSON object on one line.
field() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$2" | head -n 1; }

part_mnist() {
    small= seeds='0 1 2'
    [ -z "$SIM" ] || small='--subset 256 --epochs 1' seeds=0
    data=${DATA:-data/mnist}
    [ -d "$data" ] && data="--data $data" || data=
    echo '## MNIST, test accuracy (%) by seed' >$out/mnist.md
    for precision in fp32 fp16 bf16 half; do
        line=
        for seed in $seeds; do
            json=$PWD/$out/mnist_${precision}_$seed.json
            # shellcheck disable=SC2086  # lists of words
            (cd $out && ./mnist --device cuda --precision $precision --seed $seed --quiet $small \
                ${data:+--data "$(cd ../.. && cd "${data#--data }" && pwd)"} --json "$json" &&
                cksum <mnist.safetensors >"$json.sum") >"$out/mnist_$precision.log" 2>&1 ||
                bad "mnist $precision, seed $seed: $(tail -n 1 "$out/mnist_$precision.log")"
            line="$line $(field test_accuracy "$json")"
        done
        echo "- $precision:$line" | tee -a $out/mnist.md
        [ -n "$SIM" ] || [ -z "$data" ] || { # the mean of three seeds
            echo "$line" | awk '{ exit ($1 + $2 + $3) / 3 < 97.2 }' && good "mnist $precision" ||
                bad "mnist $precision: mean accuracy below 97.2 %"
        }
    done
    json=$PWD/$out/mnist_again.json
    # shellcheck disable=SC2086  # lists of words
    for run in second third; do
        (cd $out && ./mnist --device cuda --precision fp16 --seed 0 --quiet $small \
            ${data:+--data "$(cd ../.. && cd "${data#--data }" && pwd)"} --json "$json" &&
            cksum <mnist.safetensors | cmp - mnist_fp16_0.json.sum) >$out/mnist_again.log 2>&1 &&
            good "mnist, $run run: the same bits" || bad "mnist, $run run: other bits"
    done
}

part_speed() {
    size=1000
    [ -z "$SIM" ] || size=0.2
    try speed $out/bench/device_speed $size cuda
    { echo '## Speed' && echo '```' && cut -f1 $out/speed.log && echo '```'; } >$out/speed.md
}

# Whole steps of the MLP, GPT-2 124M, ViT-B/16 and ResNet-18: report PART TITLE WHICH
report() {
    size=full
    [ -z "$SIM" ] || size=tiny
    try "$1" timeout -k 5 $((limit - 15)) $out/bench/device_models cuda $size "$3"
    { echo "## $2" && echo '```' && cut -f1 "$out/$1.log" && echo '```'; } >"$out/$1.md"
}

# Nothing may wait in a captured step: neither here nor in the dry run, which counts calls, too.
part_models() {
    report models 'Whole steps, captured and one by one' steps
    waits=$(awk -F '\t' '$2 ~ /^waits / { split($2, w, " "); n++; sum += w[3] }
        END { if (n) print sum; else print "not counted" }' $out/models.log)
    if [ "$waits" = 0 ]; then good 'captured steps: no waits'; else
        bad "captured steps: waits $waits"
    fi
}

part_limit() { report limit 'ViT-B/16 under a cap' limit; }

part_worst() { report worst 'Launches by lost time' worst; }

# Ours and PyTorch in turn: peers PART TITLE ROW. The dry run tries the script, on the CPU.
peers() {
    echo "## Against PyTorch, same card, same run: $2" >"$out/$1.md"
    rm -f "$out/$1.log" # of another run
    device=cuda seconds=430
    [ -z "$SIM" ] || device=cpu seconds=10
    if ! $PYTHON -c "import torch; assert '$SIM' or torch.cuda.is_available()" 2>$out/x; then
        echo "- no PyTorch $([ -n "$SIM" ] || echo "with CUDA ")here" | tee -a "$out/$1.md"
        return 0
    fi
    try "$1" timeout -k 5 $((limit - 15)) "$PYTHON" tools/bench/gpu_peers.py $out/bench "$3" \
        --device $device --seconds $seconds ${SIM:+--tiny}
    { echo '```' && cut -f1 "$out/$1.log" && echo '```'; } >>"$out/$1.md"
}

part_peers() { peers peers 'kernels' kernels; }
part_peers_mlp() { peers peers_mlp 'MLP' mlp; }
part_peers_gpt2() { peers peers_gpt2 'GPT-2 124M' gpt2; }
part_peers_vit() { peers peers_vit 'ViT-B/16' vit-b16; }
part_peers_resnet() { peers peers_resnet 'ResNet-18' resnet18; }

if [ -n "${ONE:-}" ]; then # the script for one of the parts
    command -v "part_$ONE" >/dev/null || exit 2
    part_"$ONE"
    exit 0
fi
: >$out/verdicts
for part in $PART; do
    start=$(date +%s)
    ONE=$part timeout -k 10 $limit sh tools/gpu_check.sh
    case $? in
        0) ;;
        2) bad "$part is no part" ;;
        *) bad "$part took more than $limit s" ;;
    esac
    echo "      $part took $(($(date +%s) - start)) s"
done
passed=$(grep -c '^ok' $out/verdicts) failed=$(grep -c '^FAIL' $out/verdicts)
report=$out/report.md
if [ -z "$SIM" ] && [ -s $out/card ]; then
    mkdir -p tools/bench/results
    report=tools/bench/results/gpu-$(sed 's/^device: //' $out/card | tr 'A-Z ' 'a-z-' |
        tr -cd 'a-z0-9-').md
fi
{
    echo "# mptrain on $(sed 's/^device: //' $out/card)"
    echo
    echo 'Written by `make gpu-check`.'
    for part in $all; do
        if [ -e "$out/$part.md" ]; then echo && cat "$out/$part.md"; fi
    done
    echo
    echo '## Targets'
    sh tools/gpu_targets.sh $out
} >"$report"
sh tools/gpu_targets.sh $out
echo "report: $report"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
