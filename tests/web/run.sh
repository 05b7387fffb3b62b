#!/bin/sh
# The page of `make web` in headless Chromium:  run.sh BUILD. It has the bits of this machine, trains,
# writes nothing to the console, and fits on a screen and a telephone, by day and by night. So does
# a report of a training, by examples/mnist.c in BUILD.
set -u
build=$1 here=$(dirname "$0") passed=0 failed=0
page=$build/web/digits.html steps=20

check() { # check NAME COMMAND...
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)) word=ok; else failed=$((failed + 1)) word=FAILED; fi
    echo "$name ... $word"
}
open_page() { # open_page NAME.png OPTION...: what a page that was left alone for 80 frames says
    picture=$build/web/$1
    shift
    python3 "$here/browser.py" "$page#test=$steps" --until 'document.body.dataset.frames == 80' \
        --picture "$picture" "$@"
}
same_bits() {
    native=$("$build/web/web" "$steps") &&
        there=$(open_page light.png --print 'document.getElementById("result").textContent') &&
        echo "    here $native" && echo "    there $there" && [ "${native% }" = "${there% }" ]
}
all_there() {
    said=$(open_page dark.png --dark --print 'document.querySelectorAll("section canvas").length' \
        --print 'document.querySelectorAll("#bars tr").length' \
        --print 'document.querySelector("#facts").innerText' \
        --print 'document.querySelector("#trio").innerText') || return 1
    [ "$(echo "$said" | head -n 2 | tr '\n' ' ')" = '4 10 ' ] || { echo "$said" && return 1; }
    # Behind 80 frames the net reads half of the digits, and fp16 alone has lost its gradients.
    echo "$said" | awk -F '\t' '/^read right/ { right = $2 + 0 } /^fp16 alone/ { zeros = $2 + 0 }
        /^fp16, scaled/ { scaled = $2 + 0 } END { print "    " right " % right, zeros " zeros " % and " scaled " %"
        exit !(right > 50 && zeros > 95 && scaled < 10) }'
}
narrow() {
    wide=$(open_page narrow.png --width 360 --print 'document.documentElement.scrollWidth') &&
        [ "$wide" -le 360 ]
}

# A report of examples/mnist.c: charts and tables are there, by day, by night, on a telephone, and
# a pointer in a chart finds a step and its value.
pointed='(() => { const s = document.querySelector("#loss svg"), r = s.getBoundingClientRect();
    s.dispatchEvent(new PointerEvent("pointermove", {clientX: r.x + 0.6 * r.width, clientY: r.y}));
    const step = Number(document.querySelector("#loss .kx b").textContent);
    const value = Number(document.querySelector("#loss .k0 b").textContent);
    return step > 20 && step < 70 && value > 0.1 && value < 2.4 &&
        s.querySelector(".d0").getAttribute("visibility") == "visible" })()'
write_report() {
    mkdir -p "$build/web/run" && (cd "$build/web/run" && MPTRAIN_DATA='' ../../mnist --quiet \
        --subset 2560 --epochs 2 --report report.html >report.log 2>&1)
}
report_shows() { # report_shows OPTION...
    said=$(python3 "$here/browser.py" "$build/web/run/report.html" \
        --until 'document.readyState == "complete"' \
        --print 'document.querySelectorAll("svg").length > 8' \
        --print 'document.querySelectorAll("table").length > 0' \
        --print 'document.querySelectorAll("[src^=http], [href^=http], script[src]").length' \
        --print 'document.documentElement.scrollWidth <= window.innerWidth' \
        --print 'document.querySelectorAll(`#loss, #lr, #scale, #memory, #step, #kinds, .panel,
            #confusion, #filters, #weights, #gradients, #net`).length' --print "$pointed" "$@")
    [ "$(echo "$said" | tr '\n' ' ')" = 'True True 0 True 12 True ' ] || { echo "$said" && return 1; }
}
reports() {
    write_report && report_shows --picture "$build/web/report.png" && report_shows --dark &&
        report_shows --width 360
}

for program in emcc chromium python3; do
    command -v $program >/dev/null 2>&1 || {
        echo "skipped: the page needs $program"
        echo '0 passed, 0 failed, 1 skipped'
        exit 0
    }
done
check same_bits_in_the_browser same_bits
check the_net_learns_and_all_is_there all_there
check fits_on_a_telephone narrow
check reports_show_what_they_should reports
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
