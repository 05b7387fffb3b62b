#!/bin/sh
# How `make test` runs its programs and adds up what they say.
#   run.sh one NAME LOG COMMAND...   runs one test program; the log's last line holds its counts
#   run.sh examples LOG FOLDER RUN EXAMPLE.c...   runs each example, built in FOLDER
#   run.sh sum LOG...                prints what was skipped and the closing line; fails on failures
# A program that ends without its summary line, or badly after it, counts as one failure. With
# MPTRAIN_TEST_SECONDS a program that takes longer is ended, and the test it was in is named.
set -u
limit=
if [ -n "${MPTRAIN_TEST_SECONDS:-}" ] && command -v timeout >/dev/null 2>&1; then
    limit="timeout --foreground -k 5 $MPTRAIN_TEST_SECONDS"
fi

count_line='^[0-9][0-9]* passed, [0-9][0-9]* failed, [0-9][0-9]* skipped$'

report() { # report NAME LOG: one line on the screen, and the whole log when something failed
    echo "$1: $(tail -n 1 "$2")"
    case $(tail -n 1 "$2") in
        *' 0 failed'*) ;;
        *) sed 's/^/    | /' "$2" ;;
    esac
}

run_one() { # run_one NAME LOG COMMAND...
    name=$1 log=$2
    shift 2
    $limit "$@" >"$log.raw" 2>&1
    status=$?
    tr -d '\r' <"$log.raw" >"$log"
    rm -f "$log.raw"
    if [ -n "$limit" ] && { [ $status -eq 124 ] || [ $status -eq 137 ]; }; then
        last=$(grep ' \.\.\.' "$log" | tail -n 1 | sed 's/ \.\.\..*//')
        printf '\n%s\n' "FAIL $name: $last did not end in $MPTRAIN_TEST_SECONDS s" >>"$log"
    fi
    counts=$(grep "$count_line" "$log" | tail -n 1)
    if [ -z "$counts" ]; then
        echo "$name ended with status $status before its summary" >>"$log"
        counts='0 passed, 1 failed, 0 skipped'
    elif [ $status -ne 0 ] && [ "${counts#*, 0 failed}" != "$counts" ]; then
        echo "$name ended with status $status after its summary" >>"$log"
        counts="${counts%%, 0 failed*}, 1 failed${counts#*, 0 failed}"
    fi
    [ "$(tail -n 1 "$log")" = "$counts" ] || echo "$counts" >>"$log"
    report "$name" "$log"
}

run_example() { # run_example SOURCE ARGUMENT...
    name=$(basename "$1" .c)
    shift
    echo "example $name $*" >>"$log"
    # shellcheck disable=SC2086  # the runner is a list of words
    if (cd "$folder/run" && $limit $run "$folder/$name${EXE:-}" "$@") >>"$log" 2>&1 </dev/null; then
        passed=$((passed + 1))
    else
        echo "FAIL example $name: status $?" >>"$log"
        failed=$((failed + 1))
    fi
}

# An example passes when it ends with status 0. Its arguments stand in lines of its source, "test
# arguments: ..", one for each time it runs. They run one after the other in one folder, mnist
# first, since others read the file it saves.
run_examples() { # run_examples LOG FOLDER RUN EXAMPLE.c...
    log=$1 folder=$2 run=$3 passed=0 failed=0
    shift 3
    : >"$log"
    here=$(pwd)
    case $log in /*) ;; *) log=$here/$log ;; esac
    rm -rf "$folder/run"
    mkdir -p "$folder/run"
    for source in $(printf '%s\n' "$@" | sed -n '/mnist\.c$/p') \
                  $(printf '%s\n' "$@" | sed '/mnist\.c$/d'); do
        lines=$(sed -n 's/.*test arguments: *\(.*[^ ]\) *$/\1/p' "$source" | sed 's/ *\*\/$//')
        while IFS= read -r args; do
            # shellcheck disable=SC2086  # the arguments are a list of words
            run_example "$source" $args
        done <<END
$lines
END
    done
    echo "$passed passed, $failed failed, 0 skipped" >>"$log"
    report examples "$log"
}

sum() {
    for log in "$@"; do
        sed -n "s|^skip |skipped: $(basename "$log" .log) |p" "$log"
    done
    for log in "$@"; do
        tail -n 1 "$log"
    done | awk '{ passed += $1; failed += $3; skipped += $5 }
        END {
            printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
            exit failed > 0 || passed + skipped == 0
        }'
}

mode=$1
shift
case $mode in
    one) run_one "$@" ;;
    examples) run_examples "$@" ;;
    sum) sum "$@" ;;
    *) echo "run.sh: unknown mode $mode" >&2; exit 2 ;;
esac
