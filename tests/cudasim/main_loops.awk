# main_loops.awk - what the main loops of kernels on tensor cores consist of:
#     awk -f tests/cudasim/main_loops.awk FILE.ptx
# A line for each kernel that has mma in a loop: its name, mma and other instructions on the path
# through that loop that has most mma, and of those with as many the fewest other instructions: that
# of a tile which needs no masking. Barriers, branches and waits do not count. PTX, not what the
# assembler makes of it, which has fewer moves and additions of addresses.

function target(text) {
    sub(/.*\$L/, "$L", text)
    sub(/[;, ].*/, "", text)
    return text
}

# The cost of line i joins that of line `to`, if it is better.
function go(to, m, n) {
    if (to > last || to <= first && to != first) return
    if (!(to in mma) || m > mma[to] || m == mma[to] && n < other[to]) {
        mma[to] = m
        other[to] = n
    }
}

function path(i, m, n, counts) {
    delete mma
    delete other
    mma[first] = other[first] = 0
    for (i = first; i <= last; i++) {
        if (!(i in mma)) continue
        m = mma[i]
        n = other[i]
        if (i == last) break
        if (line[i] ~ /mma\.sync/) m++
        else if (line[i] !~ /bra|bar\.|barrier|cp\.async\.wait|:$/) n++
        if (line[i] ~ /bra/ && (target(line[i]) in at) && at[target(line[i])] > i)
            go(at[target(line[i])], m, n)
        if (line[i] !~ /^bra|^ret|^exit|^brx/) go(i + 1, m, n)
    }
    return mma[last] > 0
}

function finish(i, j, best, text) {
    for (i = 1; i <= lines; i++) {
        if (line[i] !~ /bra/ || !(target(line[i]) in at) || at[target(line[i])] > i) continue
        first = at[target(line[i])]
        last = i
        if (path() && mma[last] > best) {
            best = mma[last]
            text = name " " mma[last] " " other[last]
        }
    }
    if (best > 0) print text
}

/\.entry/ {
    name = $0
    sub(/.*\.entry */, "", name)
    sub(/\(.*/, "", name)
    lines = 0
    delete at
    inside = 1
    next
}
inside && /^\}/ {
    finish()
    inside = 0
}
inside {
    sub(/^[ \t]+/, "")
    if ($0 ~ /^\/\// || $0 ~ /^\./ || $0 ~ /^[{}()]?$/) next
    line[++lines] = $0
    if ($0 ~ /^\$L.*:/) {
        label = $0
        sub(/:.*/, "", label)
        at[label] = lines
    }
}
