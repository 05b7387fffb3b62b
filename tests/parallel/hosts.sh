#!/bin/sh
# Several hosts on one machine: hosts.sh BUILD [RANKS]  starts each rank of the programs of run.sh
# in a network namespace of its own, behind a link of RATE (1gbit) to a bridge, with Open MPI over
# TCP. It needs root and `ip` and `tc` of iproute2, and fails where the namespaces cannot be made.
# BENCH=1 also measures what reducing costs there.
set -u
build=$(cd "$1" && pwd) ranks=${2:-2} rate=${RATE:-1gbit} passed=0 failed=0 skipped=0
tag=mpt$(($$ % 10000)) net=10.77.$(($$ % 200 + 1))
work=$build/hosts
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1

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

each() { # each COMMAND: with the number of each rank
    i=0
    while [ $i -lt "$ranks" ]; do
        "$@" $i || return 1
        i=$((i + 1))
    done
}

make_host() {
    ip netns add "$tag-$1" &&
        ip link add "$tag.$1" type veth peer name "$tag.in$1" &&
        ip link set "$tag.in$1" netns "$tag-$1" &&
        ip link set "$tag.$1" master "$tag" up &&
        ip -n "$tag-$1" addr add "$net.$(($1 + 1))/24" dev "$tag.in$1" &&
        ip -n "$tag-$1" link set "$tag.in$1" up &&
        ip -n "$tag-$1" link set lo up &&
        tc qdisc add dev "$tag.$1" root tbf rate "$rate" burst 256kb latency 50ms &&
        tc -n "$tag-$1" qdisc add dev "$tag.in$1" root tbf rate "$rate" burst 256kb latency 50ms
}
end_host() { ip netns del "$tag-$1" 2>/dev/null; ip link del "$tag.$1" 2>/dev/null; true; }
end_all() { each end_host; ip link del "$tag" 2>/dev/null; }
trap end_all EXIT
trap 'exit 1' INT TERM

: >out
wrong='no namespaces: that needs root and iproute2'
ip link add "$tag" type bridge 2>>out && ip addr add "$net.254/24" dev "$tag" 2>>out &&
    ip link set "$tag" up 2>>out && each make_host 2>>out && wrong=
verdict "$ranks network namespaces, links of $rate" "$wrong"
[ -z "$wrong" ] || { echo "$passed passed, $failed failed, 0 skipped"; exit 1; }

# What Open MPI takes for ssh: HOST COMMAND.. in the namespace of that address.
cat >agent <<END
#!/bin/sh
while case \$1 in -*) true ;; *) false ;; esac; do shift; done
number=\$((\${1##*.} - 1))
shift
exec ip netns exec $tag-\$number unshare -u sh -c "hostname host\$number; \$*"
END
chmod +x agent
hosts=$(each printf "$net.%d:1\n" | awk -F '[.:]' '{ print $1 "." $2 "." $3 "." $4 + 1 ":1" }' |
    paste -sd ,)

start() { # start PROGRAM ARGUMENT..: one rank on each host; what it says goes to `out`
    program=$1
    shift
    timeout -k 5 400 mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none \
        --mca plm_rsh_agent "$work/agent" --mca btl self,tcp --mca pml ob1 \
        --mca btl_tcp_if_include "$net.0/24" --mca oob_tcp_if_include "$net.0/24" \
        -x BATCHES -x DEADLINE -wd "$work" -H "$hosts" -n "$ranks" \
        "$build/${program}_openmpi" "$@" >out 2>&1 <"${input:-/dev/null}"
    status=$?
}
field() { grep -a '^hash' out | tail -n 1 | cut -d ' ' -f "$1"; }

for net_name in mlp gpt; do
    export BATCHES=4
    "$build/train_openmpi" $net_name bf16 tree 30 >out 2>&1
    alone=$(field 2-5)
    start train $net_name bf16 tree 30
    wrong=
    [ $status = 0 ] || wrong="status $status"
    [ -n "$alone" ] && [ "$(field 2-5)" = "$alone" ] || wrong="$wrong $(field 2-5), alone $alone"
    verdict "$net_name bf16: $ranks hosts have the bits of one" "$wrong"
done

# The link of the last host goes down: it and the others find out.
cut=$((ranks - 1))
rm -f saved-*
(DEADLINE=2 start train mlp fp32 tree 1000000; echo "$status" >status) &
limit=0
until [ "$(grep -a -c '^rank . pid' out)" = "$ranks" ] || [ $limit -gt 100 ]; do
    sleep 0.1
    limit=$((limit + 1))
done
sleep 0.3
began=$(date +%s)
ip link set "$tag.$cut" down
sleep 6
ip link set "$tag.$cut" up
wait
took=$(($(date +%s) - began)) wrong=
[ $took -le 40 ] || wrong="it took $took s"
i=0
while [ $i -lt "$ranks" ]; do
    [ -s saved-$i.safetensors ] || wrong="$wrong; rank $i has not saved"
    i=$((i + 1))
done
verdict "a link that is cut for 6 s: all ranks ended in $took s and saved" "$wrong"

if [ -n "${BENCH:-}" ]; then
    printf 'make gpt bf16 %s 16\nmake gpt bf16 %s 16\nmake gpt bf16 %s 16\nmake gpt bf16 %s 16\n' \
        alone tree mean only >commands
    for n in 0 1 2 3; do echo "run $n 3"; done >>commands
    for k in 1 2 3 4 5 6 7; do for n in 0 1 2 3; do echo "run $n 10"; done; done >>commands
    input=commands
    start bench
    middle() { # of those of subject $1, but for the first run of each
        grep -a '^took' out | awk -v w="$1" 'NR > 4 && (NR - 1) % 4 == w { print 1000 * $2 }' |
            sort -n | sed -n 4p
    }
    echo "$(middle 0) $(middle 1) $(middle 2) $(middle 3)" | awk '{
        printf "gpt bf16, ms: alone %.1f, tree %.1f, order of MPI %.1f, reducing alone %.1f; ",
            $1, $2, $3, $4
        printf "not hidden %.2f and %.2f of that\n", ($2 - $1) / $4, ($3 - $1) / $4 }'
fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
