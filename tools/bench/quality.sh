#!/bin/sh
# quality.sh BUILD DATA: runs bench_quality on one core with the data in DATA, which has mnist/,
# cifar10/ and tinyshakespeare/. CIFAR-10 comes as PNG files in a tar, of which BUILD/tables_cifar
# makes the binary files, once. Environment:
#   TASK=mnist, cifar or gpt   one net only       SEEDS=2   fewer than five
#   WRITE=1   the result goes to tools/bench/results/quality.md, too: of all nets and seeds
set -u
say() { echo "bench-quality: $*" >&2; }
if [ -n "${WRITE:-}" ] && [ -n "${TASK:-}${SEEDS:-}" ]; then
    say 'WRITE=1 is for the whole table, without TASK and SEEDS'
    exit 2
fi
if [ -z "${2:-}" ]; then
    say 'no data: set MPTRAIN_DATA or DATA= to a folder with mnist/, cifar10/ and tinyshakespeare/'
    exit 0
fi
build=$(cd "$1" && pwd)
data=$(cd "$2" 2>/dev/null && pwd) || { say "there is no folder $2"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
pictures=$build/tables/cifar10

mkdir -p "$build/tables"
for folder in mnist cifar10 tinyshakespeare; do
    [ -d "$data/$folder" ] || { say "$data has no folder $folder"; exit 2; }
done
if [ ! -f "$pictures/test_batch.bin" ] && [ -x "$build/tables_cifar" ]; then
    mkdir -p "$pictures" "$build/tables/png"
    tar -xf "$data/cifar10/cifar10-12k-png.tar" -C "$build/tables/png" &&
        "$build/tables_cifar" "$build/tables/png" "$pictures" || exit 1
    rm -rf "$build/tables/png"
fi

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)

report() {
    cat <<END
# What saving memory costs in quality

Written by \`make bench-quality WRITE=1\`.

- CPU: ${cpu:-$(uname -m)}, $cores cores

Each option alone, from the same five seeds, which draw the first weights and the order of the data.
Loss and accuracy are those of data that nobody learned from: means over the seeds, deviations in
brackets. The difference is that of the losses of equal seeds, with its deviation; it is within the
bound if it is no more than twice the deviation of fp32 over its seeds, either way. The peak is that
of training, of all that the library had in use but for the data, in the blocks of its pool, which
may be larger than what they are for: a few per cent of a net as small as these mean nothing.

The last rows of a table go on from what fp32 had learned, with the other half of the data and as
many steps, and are compared with the first of them, which learns all weights. LoRA learns adapters
of linear layers and of projections of attention, at three times the rate; all else stays. What
these layers learn in full, while all else stays, shows how much of a loss is due to that.

Sums of shortcuts in bf16 have the net inside a module of the benchmark's: by its path the first
weights are drawn otherwise, so seeds are not paired there, and what passes between layers lives
until the step's end, so the peak of the net without shortcuts is higher than it need be.

END
    MPTRAIN_DATA=$data "$build/bench/bench_quality" "$pictures" "${TASK:-all}" ${SEEDS:+"$SEEDS"}
}

report >"$build/tables/quality.md" || exit 1
cat "$build/tables/quality.md"
if [ -n "${WRITE:-}" ]; then
    cp "$build/tables/quality.md" "$here/results/quality.md"
    say 'written: tools/bench/results/quality.md'
fi
