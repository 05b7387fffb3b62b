#!/bin/sh
# The two tables of `make tables`, by running the examples with options and reading their JSON:
# (a) what fp16 with a loss scaler and bf16 learn beside fp32, narrow models, several seeds;
# (b) what a ViT costs: peak bytes by kind, time per step, the largest batch under a cap.
#   tables.sh BUILD DATA      BUILD/resnet and so on; DATA has cifar10/ and tinyshakespeare/
# Runs are kept in BUILD/tables, so one that was broken off goes on; a new program or new options
# run again. Rows whose program or data is not there are left out, and it says so. Environment:
#   ROWS="gpt vit"  some rows only        SEEDS="0 1 2"   TINY=1  seconds instead of an hour
#   PEERS="fp32 gpt:bf16"  PyTorch's scripts of the same recipes, too, in these precisions (some of
#   one model), by PYTHON=python3; on CPUs that lack kernels for halves they can take hours
#   WRITE=1  the result goes to tools/bench/results/tables-KIND.md, too: of all rows, full sizes
set -u
if [ -n "${WRITE:-}" ] && [ -n "${ROWS:-}${TINY:-}" ]; then
    echo "make tables: WRITE=1 is for whole tables, without ROWS and TINY" >&2
    exit 2
fi
build=$(cd "$1" && pwd) data=$(cd "$2" 2>/dev/null && pwd)
here=$(cd "$(dirname "$0")" && pwd)
out=$build/tables
seeds=${SEEDS:-0 1 2}
python=$(command -v "${PYTHON:-python3}")
mkdir -p "$out"
export OMP_WAIT_POLICY=passive # of PyTorch: its threads need not spin

text=$data/tinyshakespeare/input.txt
pictures=$out/cifar10
cap=256   # MiB, for the largest batch
most=4096 # no larger batch is tried

# name | what it is | figure | bound | options | options of TINY | what has to be there
# A bound: `errors N` of the difference's standard errors, or `share N` of fp32's figure.
quality_rows() {
    cat <<END
resnet|ResNet-18 of width 8, 10,000 pictures of CIFAR-10, 5 epochs|test_accuracy|errors 2|\
--data $pictures --width 8 --subset 10000 --epochs 5|\
--subset 320 --epochs 1 --width 4|$pictures/test_batch.bin
gpt|GPT, 4 layers of 128, 128 bytes, 1,000 steps of 32, tinyshakespeare|loss|share 0.01|\
--text $text --layers 4 --heads 4 --width 128 --context 128 --batch 32 --steps 1000 --write 0|\
--layers 1 --width 32 --steps 20|$text
bert|BERT, 4 layers of 96, 64 bytes, 800 steps of 32, tinyshakespeare|loss|share 0.01|\
--text $text --layers 4 --heads 4 --width 96 --length 64 --batch 32 --steps 800|\
--layers 1 --width 32 --steps 20|$text
END
}

# name of the row | what it is | largest batch? | options | options of TINY
cost_rows() {
    cat <<END
vit|ViT, 6 layers of 96, 3 heads, 49 patches, batch 64|yes|\
--width 96 --layers 6 --heads 3 --batch 64 --subset 1024 --epochs 1|\
--width 16 --layers 2 --heads 2 --patch 7 --batch 16 --subset 64
vit_base|ViT-Base/16, 224 x 224 pixels, batch 2, one step|no|\
--size 224 --patch 16 --width 768 --layers 12 --heads 12 --batch 2 --subset 2 --epochs 1|\
--size 32 --width 32 --layers 2 --heads 2
END
}

say() { echo "tables: $*" >&2; }
wanted() { [ -z "${ROWS:-}" ] || case " $ROWS " in *" $1 "*) ;; *) return 1 ;; esac; }

# run NAME COMMAND...: unless it has run; the JSON is NAME.json, what the program says NAME.log.
run() {
    name=$1
    shift
    key="$* $(cat "$1" "$2" 2>/dev/null | cksum)"
    [ -s "$out/$name.json" ] && [ "$(cat "$out/$name.key" 2>/dev/null)" = "$key" ] && return 0
    rm -f "$out/$name.json"
    (cd "$out" && exec "$@" --json "$name.json") >"$out/$name.log" 2>&1 </dev/null
    status=$?
    [ $status -eq 0 ] && printf '%s\n' "$key" >"$out/$name.key"
    return $status
}

# A run that has to go well.
must() { run "$@" || { say "$1: $(tail -n 1 "$out/$1.log")"; exit 1; }; }

# value NAME ENTRY: a number of a run's JSON.
value() { tr ',{}' '\n\n\n' <"$out/$1.json" | sed -n "s/^ *\"$2\": *//p" | head -n 1; }

built() { [ -x "$build/$1" ] || { say "$1 is not built: left out"; return 1; }; }

# ==== (a) ====

quality() { # by PyTorch too where it has the recipe
    wanted "$model" && built "$model" || return 0
    [ -f "$needs" ] || { say "$model: $needs is not there: left out"; return 0; }
    makers=mptrain
    [ -n "${PEERS:-}" ] && grep -q "^def train_$model" "$here/bench/models_peer.py" &&
        makers='mptrain PyTorch'
    for maker in $makers; do
        precisions='fp32 fp16 bf16'
        [ "$maker" = mptrain ] || precisions=$PEERS
        for precision in $precisions; do
            case $precision in *:*) [ "${precision%:*}" = "$model" ] || continue ;; esac
            precision=${precision#*:}
            for seed in $seeds; do
                program=$build/$model
                [ "$maker" = mptrain ] || program="$python $here/bench/models_peer.py $model"
                # shellcheck disable=SC2086  # lists of words
                must "$model-$maker-$precision-$seed" $program $options ${TINY:+$tiny} \
                    --precision $precision --seed "$seed"
                say "$name: $figure $(value "$name" "$figure"), $(value "$name" seconds) s"
                echo "$model|$what|$figure|$bound|$maker|$precision|$(value "$name" "$figure")"
            done
        done
    done
}

# Means and deviations over the seeds; what halves lose, and whether that is within the bound.
quality_table() {
    awk -F '|' '
        function mean(k) { return sum[k] / n[k] }
        function variance(k,  v) {
            v = n[k] > 1 ? (squares[k] - sum[k] * sum[k] / n[k]) / (n[k] - 1) : 0
            return v > 0 ? v : 0
        }
        function figure(k) {
            if (!n[k]) return ""
            return sprintf(percent ? "%.2f (%.2f)" : "%.4f (%.4f)", mean(k), sqrt(variance(k)))
        }
        # The difference of two means, what it may be, and the verdict; nothing for one seed alone
        # where the seeds are to tell.
        function compare(k, to, bound,  d, error, part, limit) {
            if (!n[k] || !n[to]) return ""
            d = mean(k) - mean(to)
            error = sqrt(variance(k) / n[k] + variance(to) / n[to])
            split(bound, part, " ")
            limit = part[2] * (part[1] == "errors" ? error : part[1] == "share" ? mean(to) : 1)
            if (part[1] == "errors" && (n[k] < 2 || n[to] < 2))
                return sprintf(percent ? "%+.2f" : "%+.4f", d)
            return sprintf(percent ? "%+.2f, bound %.2f: %s" : "%+.4f, bound %.4f: %s", d, limit,
                           (d < 0 ? -d : d) <= limit ? "within" : "**beyond**")
        }
        {
            value = $3 ~ /accuracy/ ? 100 * $7 : $7
            k = $1 "|" $5 "|" $6
            if (!(k in n)) { n[k] = sum[k] = squares[k] = 0 }
            n[k]++; sum[k] += value; squares[k] += value * value
            if (!($1 in what)) order[++models] = $1
            what[$1] = $2; name[$1] = $3; bound[$1] = $4
            peer[$1] = peer[$1] || $5 == "PyTorch"
        }
        END {
            print "| model | by | fp32 | fp16, scaled | bf16 | fp16 - fp32 | bf16 - fp32 |"
            print "|---|---|---|---|---|---|---|"
            for (m = 1; m <= models; m++) {
                x = order[m]; percent = name[x] ~ /accuracy/
                label = what[x] ": " (percent ? "test accuracy, %" : "loss on kept text, nats")
                for (p = 0; p <= peer[x]; p++) {
                    by = x (p ? "|PyTorch|" : "|mptrain|")
                    printf "| %s | %s | %s | %s | %s | %s | %s |\n", p ? "" : label,
                        p ? "PyTorch" : "mptrain", figure(by "fp32"), figure(by "fp16"),
                        figure(by "bf16"), compare(by "fp16", by "fp32", bound[x]),
                        compare(by "bf16", by "fp32", bound[x])
                }
                if (peer[x]) {
                    printf "| | mptrain - PyTorch"
                    split("fp32 fp16 bf16", low, " ")
                    for (i = 1; i <= 3; i++) {
                        by = x "|PyTorch|" low[i]
                        printf " | %s", compare(x "|mptrain|" low[i],
                            n[by] ? by : x "|PyTorch|fp32", percent ? "errors 2" : "plain 0.02")
                    }
                    print " | | |"
                }
            }
        }' "$out/quality"
}

# ==== (b) ====

# largest PROGRAM OPTIONS...: the largest batch that trains below the cap, by halving; to 1/16.
largest() {
    fits=0 fails=0 batch=16
    while [ $fails -eq 0 ] || [ $((fails - fits)) -gt $((fits / 16 + 1)) ]; do
        run "largest-$batch" "$@" --batch $batch --subset $((2 * batch)) --memory-limit $cap
        case $? in
            0) fits=$batch ;;
            1) fails=$batch ;;
            *) say "largest: $(tail -n 1 "$out/largest-$batch.log")"; return 1 ;;
        esac
        if [ $fails -gt 0 ]; then batch=$(((fits + fails) / 2)); else batch=$((2 * batch)); fi
        [ $batch -lt 2 ] || [ $batch -gt $most ] && break
    done
    echo $fits
}

cost() {
    wanted vit && built vit || return 0
    for precision in fp32 fp16 bf16; do
        # shellcheck disable=SC2086
        must "$row-$precision" "$build/vit" $options ${TINY:+$tiny} --precision $precision --seed 0
        batch=
        # shellcheck disable=SC2086
        [ "$search" = no ] ||
            batch=$(largest "$build/vit" $options ${TINY:+$tiny} --precision $precision) || exit 1
        say "$row-$precision: $(value "$row-$precision" seconds) s${batch:+, batch $batch}"
        for kind in parameter master form gradient moment activation batch workspace total; do
            echo "$row|$what|$precision|$kind|$(value "$row-$precision" $kind)"
        done
        for figure in fastest_step_seconds seconds steps; do
            echo "$row|$what|$precision|$figure|$(value "$row-$precision" $figure)"
        done
        echo "$row|$what|$precision|largest|$batch"
    done
}

cost_table() {
    awk -F '|' -v cap=$cap '
        function line(label, kind, scale, format,  i, text, v) {
            text = "| " label " |"
            for (i = 1; i <= 3; i++) {
                v = value[x, low[i], kind]
                text = text (v == "" ? " |" : sprintf(" " format " |", v / scale))
            }
            for (i = 2; i <= 3; i++) {
                v = value[x, "fp32", kind]
                text = text (v > 0 ? sprintf(" %.2f |", value[x, low[i], kind] / v) : " |")
            }
            print text
        }
        { if (!($1 in what)) { order[++rows] = $1; what[$1] = $2 }; value[$1, $3, $4] = $5 }
        END {
            split("fp32 fp16 bf16", low, " ")
            count = split("parameter master form gradient moment activation batch workspace total",
                          kinds, " ")
            for (r = 1; r <= rows; r++) {
                x = order[r]
                print "| " what[x] " | fp32 | fp16, scaled | bf16 | fp16 / fp32 | bf16 / fp32 |"
                print "|---|---|---|---|---|---|"
                for (k = 1; k <= count; k++)
                    line("peak of " (k < count ? "the kind " : "") kinds[k] ", MiB", kinds[k],
                         1048576, "%.1f")
                for (i = 1; i <= 3; i++) {
                    if (value[x, low[i], "fastest_step_seconds"] == 0) # there was one step alone
                        value[x, low[i], "fastest_step_seconds"] = value[x, low[i], "seconds"]
                    value[x, low[i], "fastest_step_seconds"] += 0
                }
                line("fastest step, ms", "fastest_step_seconds", 0.001, "%.1f")
                if (value[x, "fp32", "largest"] != "")
                    line("largest batch below " cap " MiB, data included", "largest", 1, "%d")
                print ""
            }
        }' "$out/cost"
}

# ==== The work ====

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)

against=
[ -z "${PEERS:-}" ] || against='; from those of PyTorch, which is its
fp32 where it did not run a precision, by two standard errors, losses by 0.02 nats'

report() {
    cat <<END
# What precision costs and saves: $kind

Written by \`make tables WRITE=1\`. Machines differ and are shared: no absolute time is a claim.

- CPU: ${cpu:-$(uname -m)}, $cores cores; kernels: $isa
- seeds: $seeds${TINY:+; tiny sizes, which prove the driver and nothing else}

## (a) What is learned

Means over the seeds, their deviations in brackets. Accuracies may differ from fp32's by two
standard errors of the difference, losses by 1 % of fp32's$against.

$(quality_table)

## (b) What a step costs

$(cost_table)
END
}

if [ ! -f "$pictures/test_batch.bin" ] && [ -f "$data/cifar10/cifar10-12k-png.tar" ] &&
    [ -x "$build/tables_cifar" ]; then
    mkdir -p "$pictures" "$out/png"
    tar -xf "$data/cifar10/cifar10-12k-png.tar" -C "$out/png" &&
        "$build/tables_cifar" "$out/png" "$pictures" || exit 1
    rm -rf "$out/png"
fi

quality_rows | while IFS='|' read -r model what figure bound options tiny needs; do
    quality || exit 1
done >"$out/quality" || exit 1
cost_rows | while IFS='|' read -r row what search options tiny; do
    cost || exit 1
done >"$out/cost" || exit 1
isa=$(cat "$out"/*.json 2>/dev/null | sed -n 's/.*"isa": "\([a-z0-9]*\)".*/\1/p' | head -n 1)
kind=cpu-$(uname -m | tr _ -)-${isa:-none}-$cores-cores
report >"$out/tables.md"
cat "$out/tables.md"
if [ -n "${WRITE:-}" ]; then
    cp "$out/tables.md" "$here/bench/results/tables-$kind.md"
    say "written: tools/bench/results/tables-$kind.md"
fi
