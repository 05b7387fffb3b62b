#!/bin/sh
# What `make test-parallel` runs:  run.sh BUILD MPI...  with the programs that are built there for
# each of these MPIs, openmpi or mpich. ONLY=overflow runs what has that word in its name; FULL=1
# runs longer, and kills and stops ranks at more points, drawn by SEED. The last line is a count.
set -u
build=$(cd "$1" && pwd) passed=0 failed=0 skipped=0 seed=${SEED:-1}
shift
mpis=$*
work=$build/run
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
steps=100 faults=1 strikes=1
[ -z "${FULL:-}" ] || faults=5 strikes=45
export OMPI_MCA_btl_base_warn_component_unused=0

wanted() { case $1 in *"${ONLY:-}"*) return 0 ;; esac; return 1; }

verdict() { # verdict NAME WHAT: counts; WHAT says what is wrong, empty: nothing
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "ok   $1"
    else
        failed=$((failed + 1))
        echo "FAIL $1: $2"
        sed 's/^/    | /' out | head -40
    fi
}

# start MPI RANKS PROGRAM ARGUMENT..: what it says goes to `out`, its status to $status
start() {
    mpi=$1 ranks=$2 program=$3
    shift 3
    flags=
    [ "$mpi" = mpich ] || flags='--oversubscribe'
    [ "$mpi" = mpich ] || [ "$(id -u)" != 0 ] || flags="$flags --allow-run-as-root"
    # shellcheck disable=SC2086  # flags are words
    timeout -k 5 120 "mpirun.$mpi" $flags -n "$ranks" ${shell:-} \
        "$build/${program}_$mpi" "$@" >out 2>&1
    status=$?
}

last() { grep -a '^hash' out | tail -n 1; }
field() { echo "$1" | cut -d ' ' -f "$2"; }

near() { # near A B BOUND: whether A is B up to BOUND times B
    awk -v a="$1" -v b="$2" -v bound="$3" 'BEGIN {
        d = a > b ? a - b : b - a; exit !(a != "" && b > 0 && d <= bound * b) }'
}

# ==== What holds on any number of ranks ====

for mpi in $mpis; do
    for n in 1 2 4; do
        wanted "ranks $mpi $n" || continue
        rm -f rank-*.log
        start "$mpi" $n ranks
        cat rank-*.log >>out 2>/dev/null
        wrong=
        [ $status = 0 ] || wrong="status $status"
        verdict "ranks $mpi $n: $(grep -a -h passed rank-0.log)" "$wrong"
    done
done

for mpi in $mpis; do
    for n in 1 4; do
        wanted "example $mpi $n" || continue
        start "$mpi" $n spiral
        wrong=
        [ $status = 0 ] || wrong="status $status"
        verdict "example $mpi $n: $(grep -a ranks, out)" "$wrong"
    done
done

# ==== Trainings ====

# The same bits, given as fields of the last line, on all ranks and with all MPIs.
same_bits() { # same_bits NAME FIELDS BATCHES RANKS ARGUMENT..
    name=$1 fields=$2 n_list=$4
    [ -n "${RECOMPUTE:-}${SHARD:-}" ] || first=''
    export BATCHES="$3"
    shift 4
    wanted "$name" || return
    for mpi in $mpis; do
        for n in $n_list; do
            start "$mpi" "$n" train "$@"
            got=$(field "$(last)" "$fields") wrong=
            [ -n "$first" ] || first=$got
            [ $status = 0 ] && [ -n "$got" ] || wrong="status $status"
            [ "$got" = "$first" ] || wrong="$got, expected $first"
            verdict "$name $mpi $n" "$wrong"
        done
    done
}

for precision in fp32 fp16 bf16; do
    for net in mlp drop gpt; do
        same_bits "tree $net $precision" 2-5 4 '1 2 4' $net $precision tree $steps
    done
done
RECOMPUTE=1 # compared with what came last
export RECOMPUTE
same_bits 'tree gpt bf16 run again' 2-5 4 '1 4' gpt bf16 tree $steps
unset RECOMPUTE
same_bits 'tree norm fp32' 3 4 '1 2 4' norm fp32 tree $steps # statistics are of other batches
same_bits 'tree mlp fp32 of 6' 2-5 6 '1 2 3' mlp fp32 tree 20
same_bits 'tree gpt bf16 of 12' 2-5 12 '1 2 3 4' gpt bf16 tree 20
export BATCHES=4

# States in parts: the same bits as whole ones, in no more than their share of memory, and files
# that load on any number of ranks.
shares() { # shares RANKS: what is wrong with the bytes that ranks have
    awk -v n="$1" '/^rank [0-9]+ states/ { seen++; if ($NF > 1 / n + 0.02) print "a part of " $NF }
        END { if (seen != n) print seen + 0 " ranks told their bytes" }' out
}

shard() { # shard NAME ARGUMENT..: as one rank with whole states
    name="shard $1"
    shift
    wanted "$name" || return
    "$build/train_${mpis%% *}" "$@" >out 2>&1
    whole=$(field "$(last)" 2-5)
    for mpi in $mpis; do
        for n in 1 2 4; do
            SHARD=1 start "$mpi" $n train "$@"
            got=$(field "$(last)" 2-5) wrong=$(shares $n)
            [ -n "$got" ] && [ "$got" = "$whole" ] || wrong="$got, whole $whole"
            [ $status = 0 ] || wrong="status $status"
            verdict "$name $mpi $n" "$wrong"
        done
    done
}

for precision in fp32 fp16 bf16; do
    shard "$precision" mlp $precision tree 20
done
shard 'gpt bf16' gpt bf16 tree 20
BITS=8 shard 'mlp bf16, 8 bits' mlp bf16 tree 20
HALF=1 shard 'mlp bf16, masters' mlp bf16 tree 20

for mpi in $mpis; do
    wanted "shard again $mpi" || continue
    for bits in 32 8; do
        export BITS=$bits
        start "$mpi" 1 train mlp bf16 tree 12
        whole=$(field "$(last)" 2-5)
        KEEP=kept SHARD=1 start "$mpi" 4 train mlp bf16 tree 5
        for n in 1 2 4; do
            FROM=kept START=5 SHARD=1 start "$mpi" $n train mlp bf16 tree 12
            got=$(field "$(last)" 2-5) wrong=
            [ -n "$got" ] && [ "$got" = "$whole" ] || wrong="$got, whole $whole"
            [ $status = 0 ] || wrong="status $status"
            verdict "shard again $mpi: $bits bits, saved by 4 ranks, on $n" "$wrong"
        done
        unset BITS
    done
done

# Beside one process that knows nothing of ranks. In halves another order of sums rounds other
# activations up, and 100 steps make more of that.
beside() { # beside NET PRECISION WAY RANKS
    name="$3 $1 $2 beside one process"
    wanted "$name" || return
    bound=1e-5
    [ "$2" = fp32 ] || bound=1e-2
    for mpi in $mpis; do
        "$build/train_$mpi" "$1" "$2" single $steps >out 2>&1
        alone=$(field "$(last)" 5)
        for n in $4; do
            start "$mpi" "$n" train "$1" "$2" "$3" $steps
            got=$(field "$(last)" 5) wrong=
            near "$got" "$alone" $bound || wrong="loss $got, alone $alone, bound $bound"
            [ $status = 0 ] || wrong="status $status"
            verdict "$name $mpi $n: loss $got, alone $alone" "$wrong"
        done
    done
}

for precision in fp32 fp16 bf16; do
    for net in mlp gpt; do
        beside $net $precision mean '1 2 4'
        beside $net $precision tree 4
    done
done

# ==== An overflow on one rank ====

for mpi in $mpis; do
    for way in tree mean; do
        for n in 2 4; do
            name="overflow $way $mpi $n" wrong=
            wanted "$name" || continue
            start "$mpi" $n train mlp fp16 $way 40 overflow 1 7
            rank=0
            while [ $rank -lt $n ]; do
                got=$(grep -a "^rank $rank skipped" out | sed 's/.* //' | tr '\n' ' ')
                [ "$got" = '6 13 20 27 34 ' ] || wrong="rank $rank skipped $got"
                grep -a -q "^rank $rank scale 32 skipped 5, not finite 5 by rank 1 in 4.bias" out ||
                    wrong="rank $rank has another scale, or names another rank"
                rank=$((rank + 1))
            done
            [ $status = 0 ] || wrong="status $status"
            verdict "$name" "$wrong"
        done
    done
done

# ==== Ranks that fail, die or stop ====

# All ranks but `but` have named it and saved the same weights.
survivors() { # survivors RANKS BUT WORDS
    rank=0 wrong=
    while [ $rank -lt "$1" ]; do
        if [ $rank != "$2" ]; then
            grep -a -q "^rank $rank error: .*$3" out || wrong="rank $rank does not say: $3"
            [ -s saved-$rank.safetensors ] || wrong="rank $rank has not saved"
            cmp -s saved-$rank.safetensors "saved-$((($2 + 1) % $1)).safetensors" ||
                wrong="what rank $rank saved differs"
        fi
        rank=$((rank + 1))
    done
    echo "$wrong"
}

for mpi in $mpis; do
    name="fail $mpi"
    wanted "$name" || continue
    rm -f saved-*
    start "$mpi" 4 train mlp fp32 tree 40 fail 2 7
    verdict "$name" "$(survivors 4 2 'rank 2 left with an error: mpt_reshape')"
done

draw() { # a step from 1 to 30
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    step=$((seed / 65536 % 30 + 1))
}

# A shell between MPICH's launcher and a rank, which would end the others, too: as long as it is
# there, the launcher does not notice.
cat >between <<'END'
#!/bin/sh
"$@" || sleep 8
END
export DEADLINE=2
export UCX_TLS=posix,self # else UCX ends who reads the memory of a process that is gone
for mpi in $mpis; do
    for fault in kill stop; do
        i=0
        while [ $i -lt $faults ]; do
            draw
            i=$((i + 1)) name="$fault $mpi at step $step"
            wanted "$name" || continue
            rm -f saved-*
            shell=''
            [ $fault$mpi = killmpich ] && shell='sh between'
            began=$(date +%s)
            start "$mpi" 4 train mlp fp32 mean 1000000 $fault 2 $step
            took=$(($(date +%s) - began)) wrong=
            shell=''
            [ $took -le 30 ] || wrong="it took $took s"
            # Open MPI's launcher ends all when one dies.
            [ $fault$mpi = killopenmpi ] || wrong=$wrong$(survivors 4 2 'rank 2 of 4 did not answer')
            verdict "$name: ended in $took s" "$wrong"
        done
    done
    name="resume $mpi"
    if wanted "$name" && [ -s saved-0.safetensors ]; then
        wrong=
        LOAD=saved-0.safetensors start "$mpi" 2 train mlp fp32 tree 5
        [ $status = 0 ] || wrong="status $status"
        verdict "$name: on 2 ranks from what a survivor of 4 saved" "$wrong"
    fi
done

# ==== From outside, at any time ====

# A training of 4 ranks that keeps a checkpoint; one rank is killed or stopped some milliseconds
# after the first one. All others end by themselves, or are ended by the launcher, and the
# checkpoint loads.
strike() { # strike MPI FAULT
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    victim=$((seed / 65536 % 4))
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    after=$((seed / 65536 % 700)) limit=0
    name="$2 $1 of rank $victim after $after ms"
    rm -f saved-* kept status out
    shell=''
    [ "$2$1" = strikempich ] && shell='sh between'
    (EACH=3 KEEP=kept start "$1" 4 train mlp fp16 tree 1000000; echo "$status" >status) &
    while [ $limit -lt 100 ] && { [ ! -s kept ] || [ "$(grep -a -c '^rank . pid' out)" != 4 ]; }; do
        sleep 0.1
        limit=$((limit + 1))
    done
    sleep "$(awk "BEGIN { print $after / 1000 }")"
    began=$(date +%s)
    pid=$(sed -n "s/^rank $victim pid //p" out)
    signal=STOP
    [ "$2" = stall ] || signal=KILL
    wrong='no rank to strike'
    [ -z "$pid" ] || { kill -s $signal "$pid" && wrong=; }
    wait
    took=$(($(date +%s) - began)) rank=0 shell=''
    [ $took -le 30 ] || wrong="$wrong it took $took s"
    while [ $rank -lt 4 ] && [ "$2$1" != strikeopenmpi ]; do
        if [ $rank != $victim ]; then
            grep -a -q "^rank $rank error: .*rank $victim of 4 did not" out ||
                wrong="$wrong; rank $rank does not name it"
            [ -s saved-$rank.safetensors ] || wrong="$wrong; rank $rank has not saved"
        fi
        rank=$((rank + 1))
    done
    [ -z "$wrong" ] || return 0
    cp out struck
    FROM=kept start "$1" 2 train mlp fp16 tree 2
    [ $status = 0 ] || wrong="the checkpoint: status $status"
}

for mpi in $mpis; do
    for fault in strike stall; do
        i=0
        while [ $i -lt $strikes ]; do
            i=$((i + 1))
            wanted "$fault $mpi" || continue
            strike "$mpi" $fault
            verdict "$name: ended in $took s, the checkpoint loads" "$wrong"
        done
    done
done

# ==== Built without ====

if wanted without; then
    nm "$build/without.o" >out
    wrong=$(grep -i -E 'MPI_|parallel_begin|data_parallel|all_reduce' out)
    verdict 'without MPTRAIN_USE_MPI the object has nothing of it' "$wrong"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
