#!/bin/sh
# Tests the simulator: run.sh [FOLDER]    builds in FOLDER, build/cudasim unless given
# test_cudasim.cu must pass in every mode and order; of faults.cu each program must be caught, and
# the sound one must not. The modes run side by side. One line per test, then the counts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-build/cudasim}
mkdir -p "$folder"

verdict() { # verdict STATUS NAME LOG
    if [ "$1" -eq 0 ]; then echo "ok $2"; else
        echo "FAIL $2"
        sed 's/^/    | /' "$3" | head -n 40
    fi
}

flags_of() {
    case $1 in
        plain) echo '-O1 -g -Wall -Wextra -Werror' ;;
        asan) echo '-O0 -g -fsanitize=address,undefined -fno-sanitize-recover=all' ;;
        tsan) echo '-O0 -g -fsanitize=thread' ;;
    esac
}
build() { # build PROGRAM MODE
    rm -f "$folder/$1-$2"
    sh "$here/build.sh" "$folder/$1-$2" "$(flags_of "$2")" "$here/$1.cu" >"$folder/$1-$2.log" 2>&1
}

# sound NAME PROGRAM VARIABLES ARGUMENTS: must end with status 0
sound() {
    log=$folder/$2.log
    # shellcheck disable=SC2086  # lists of words
    env $3 "$folder/$2" $4 >"$log" 2>&1
    verdict $? "$1" "$log"
}

# caught FAULT MODE VARIABLE TEXT: must end badly, and say TEXT; a VARIABLE of - is none
caught() {
    log=$folder/faults-$2.log
    status=0
    # shellcheck disable=SC2086  # a list of words
    env ${3%-} "$folder/faults-$2" "$1" >"$log" 2>&1 && status=1
    grep -q "$4" "$log" || status=1
    verdict $status "fault $1, $2 ${3%-}" "$log"
}

faults='
static_shared            asan  -                global-buffer-overflow
dynamic_shared           asan  -                use-after-poison
global_memory            asan  -                use-after-poison
freed_memory             asan  -                use-after-poison
misaligned_store         asan  -                misaligned address
barrier                  plain -                divergent barrier
lanes                    plain -                deadlock
copies                   plain -                wrong: element 0 is -*nan
lanes_of_a_product       plain -                not all lanes of the warp
rows_of_a_matrix         plain -                not aligned to 16 bytes
shuffles                 plain -                divergent warp function
source                   plain -                wrong: element 8
uninitialised            plain -                wrong: element 0 is -*nan
uninitialised_in_shared  plain -                wrong: element 0 is -*nan
host_read                plain CUDASIM_PROTECT=2 the host touched device memory
host_write               plain CUDASIM_PROTECT=2 the host touched device memory
host_read                asan  CUDASIM_PROTECT=2 SEGV
host_pointer             plain -                parameter 1 holds a pointer to host memory
host_pointer_in_struct   plain -                parameter 0 holds a pointer to host memory
freed_pointer            plain -                pointer to freed device memory
freed_memory             plain -                wrong: element 0 is -*nan
copy_direction           plain -                is not host memory
copy_too_long            plain -                not device memory
host_sync                plain CUDASIM_ASYNC=1 the result is not there yet
host_overwrite           plain CUDASIM_ASYNC=1 wrong: element 0 is 1
host_write_in_flight     plain CUDASIM_ASYNC=1 the host wrote to .*, byte 12, while a copy was on its way
stream_of_other          plain CUDASIM_DEVICES=2 the stream is of device 0, the current device is 1
memory_of_other          plain CUDASIM_DEVICES=2 memory is of device 0, the stream.s device is 1
event_of_other           plain CUDASIM_DEVICES=2 the event is of device 0, the stream.s device is 1
copy_of_other            plain CUDASIM_DEVICES=2 memory is of device 0, the stream.s device is 1
handle_of_other          plain CUDASIM_DEVICES=2 the handle is of device 0, the current device is 1
stream_sync              plain CUDASIM_ASYNC=1 wrong: element 0
graph_edge               plain CUDASIM_ORDER=1 wrong: element 0
block_order              plain CUDASIM_ORDER=1 wrong: the last block
shared_race              tsan  -                data race
global_race              tsan  -                data race
block_race               tsan  CUDASIM_TSAN_GRID=1 data race
product_of_host_memory   plain -                are not device memory
product_beyond_memory    plain -                are not device memory
workspace_in_use         plain -                wrong: element 0 is -*nan
'

run_mode() { # run_mode MODE: builds both programs of it, and runs them
    for program in test_cudasim faults; do
        build $program "$1"
        [ -x "$folder/$program-$1" ]
        verdict $? "build of $program, $1" "$folder/$program-$1.log"
    done
    for how in 'CUDASIM_ORDER=0' 'CUDASIM_ORDER=1 CUDASIM_ASYNC=1' \
        'CUDASIM_ORDER=7 CUDASIM_ASYNC=1'; do
        sound "tests, $1 $how" "test_cudasim-$1" "$how" ''
        sound "no fault, $1 $how" "faults-$1" "$how" none
    done
    if [ "$1" = plain ]; then
        for protect in 0 2; do
            sound "tests, plain CUDASIM_PROTECT=$protect" test_cudasim-plain \
                CUDASIM_PROTECT=$protect ''
        done
    elif [ "$1" = tsan ]; then
        sound 'no fault, tsan CUDASIM_TSAN_GRID=1' faults-tsan CUDASIM_TSAN_GRID=1 none
    fi
    echo "$faults" | while read -r fault in variables text; do
        [ "$in" != "$1" ] || caught "$fault" "$in" "$variables" "$text"
    done
    echo "end of $1"
}

for mode in plain asan tsan; do run_mode "$mode" >"$folder/run-$mode.log" 2>&1 & done
wait
cat "$folder/run-plain.log" "$folder/run-asan.log" "$folder/run-tsan.log" >"$folder/run.log"
grep -v '^end of ' "$folder/run.log"
passed=$(grep -c '^ok ' "$folder/run.log") failed=$(grep -c '^FAIL ' "$folder/run.log")
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$(grep -c '^end of ' "$folder/run.log")" -eq 3 ]
