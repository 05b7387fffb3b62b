#!/bin/sh
# gpu_targets.sh: what make gpu-check has measured beside what an H200 has to reach:
#     gpu_targets.sh FOLDER    reads FOLDER/card and FOLDER/*.log, prints a table of Markdown
# Ratios are the same on every card. On another than an H200 times and rates are scaled from its 4.3
# TB/s and 790 Tflop/s: what moves memory by the bandwidth of a copy, transformers by the rate of
# bf16 products, as device_models has measured both (its part worst).
set -u
cd "$1" || exit 2
logs=
for log in speed models limit worst peers peers_mlp peers_gpt2 peers_vit peers_resnet; do
    [ ! -e $log.log ] || logs="$logs $log.log"
done
# shellcheck disable=SC2086  # a list of files
awk -F '\t' -v card="$(sed 's/^device: //' card 2>/dev/null)" '
# What was measured, by words: "steps gpt2 bf16 5" is the fifth word of that line.
NF == 4 && $3 + 0 > 0 { value["speed " $2] = $3 }
NF == 2 {
    sub(/-tiny /, " ", $2)
    n = split($2, w, " ")
    key = w[1] " " w[2]
    from = 3
    if (w[1] == "steps" || w[1] == "ratio" || w[1] == "memory" || w[1] == "peer") {
        key = key " " w[3]
        from = 4
    }
    if (w[1] == "peer") key = key " " w[from++]
    if (w[1] == "memory" && w[n] == "recompute") key = key " recompute"
    if (w[1] == "waits") waits += w[3]
    if (w[1] == "waits") value["waits"] = waits
    for (i = from; i <= n; i++) if (w[i] != "-") value[key " " i - from + 1] = w[i]
}
function of(key) { return key in value ? value[key] : "" }
# The least, or the largest, of two where there are both; the peers of captured steps are graphs.
function least(a, b) { return a == "" ? b : b == "" ? a : a + 0 < b + 0 ? a : b }
function most(a, b) { return a == "" || b == "" ? "" : a + 0 > b + 0 ? a : b }
function both(a, b) { return a == "" || b == "" ? "" : least(a, b) }
function graphs(p,    k) {
    k = "peer mlp " p " "
    return least(of(k "graphed-callables 1"),
                 least(of(k "graphed-step 1"), of(k "compiled-graphed-step 1")))
}
function part(a, b) { return a == "" || b == "" ? "" : a / b }
function times(a, b) { return a == "" ? "" : a * b }
function shown(x) { return sprintf(x >= 1000 ? "%.0f" : "%.4g", x) }
# sense: 1: at least, -1: at most. scale: how much more of that the card may take, or has to reach.
function row(work, sense, target, unit, scale, by, measured, note,    here, met) {
    here = scale == "" ? "" : target * scale
    if (by == "") here = target
    met = sense * measured >= sense * here ? "yes" : "**no**"
    if (here == "") met = "no ceilings"
    if (measured == "") met = "not measured"
    if (simulated && measured != "") met = "not judged"
    if (met == "yes") reached++
    if (met ~ /yes|no\*/) judged++
    rows++
    if (measured != "") measured = shown(measured) note
    printf("| %s | %s %g%s | %s | %s | %s | %s |\n", work, (sense > 0 ? ">=" : "<="), target,
           (unit == "" ? "" : " " unit), (here == "" ? "?" : shown(here)), by, measured, met)
}
function batch(key) { return of(key) == "" ? "" : ", batch " of(key) }
END {
    simulated = card ~ /simulator|CPU/
    same = card ~ /H200/
    copy = of("ceilings bf16 1")
    product = of("ceilings bf16 2")
    slower = same ? 1 : part(4.3e12, copy)
    rate = same ? 1 : part(product, 790e12)
    print "| work | target on an H200 | here | scaled by | measured | met |"
    print "|---|---|---|---|---|---|"
    row("MLP 784-128-64-10, batch 64, captured step", -1, 30, "us", slower, "copy",
        times(most(of("steps mlp fp16 2"), of("steps mlp bf16 2")), 1e6),
        ", the slower of fp16 and bf16")
    row("MLP, captured: times PyTorch, eager AMP", 1, 10, "", 1, "",
        both(of("peer mlp fp16 eager 1"), of("peer mlp bf16 eager 1")))
    row("MLP, captured: times PyTorch with CUDA graphs", 1, 2, "", 1, "",
        both(graphs("fp16"), graphs("bf16")))
    row("GPT-2 124M, T=1024, bf16, step", 1, 560000, "tokens/s", rate, "product",
        of("steps gpt2 bf16 3"), batch("steps gpt2 bf16 1"))
    row("GPT-2: times torch.compile", 1, 1.1, "", 1, "", of("peer gpt2 bf16 compiled 1"),
        batch("peer gpt2 bf16 compiled 2"))
    row("ViT-B/16 224, bf16, step", 1, 3750, "pictures/s", rate, "product",
        of("steps vit-b16 bf16 3"), batch("steps vit-b16 bf16 1"))
    row("ViT-B/16: times torch.compile", 1, 1.1, "", 1, "", of("peer vit-b16 bf16 compiled 1"),
        batch("peer vit-b16 bf16 compiled 2"))
    row("ResNet-18 224, fp16, scaler, channels_last: times torch.compile, with cuDNN", 1, 1.05,
        "", 1, "", "")
    row("the same without cuDNN, as mptrain is built", 1, 0.7, "", 1, "",
        of("peer resnet18 fp16 compiled 1"), batch("peer resnet18 fp16 compiled 2"))
    row("AdamW, 124M values, fp32 masters and bf16", -1, 1, "ms", slower, "copy",
        times(of("speed adamw 124M, bf16 and fp32 masters"), 1e3))
    split("gpt2 vit-b16 GPT-2 ViT-B/16", name, " ")
    for (k = 1; k <= 2; k++) {
        row(name[k + 2] ", bf16, times own tf32", 1, 1.7, "", 1, "", of("ratio " name[k] " bf16 2"))
        row(name[k + 2] ", bf16, times own fp32", 1, 6, "", 1, "", of("ratio " name[k] " bf16 1"))
    }
    split("gpt2 bf16, vit-b16 bf16, resnet18 fp16", name, ", ")
    for (k = 1; k <= 3; k++) {
        key = "peer " name[k] " eager "
        row("memory of a step, times that of PyTorch AMP: " name[k], -1, 0.9, "", 1, "",
            part(of(key "5"), of(key "7")), batch(key "2"))
    }
    note = of("memory vit-b16 bf16 recompute 4")
    row("ViT-B/16, batch 64, layer norms and GELUs computed again: peak", -1, 4, "GB", 1, "",
        times(of("memory vit-b16 bf16 recompute 2"), 1e-3),
        (note == "" ? "" : sprintf(" (%.4g by the driver)", note / 1e3)) \
        batch("memory vit-b16 bf16 recompute 1"))
    row("ViT-B/16, largest batch under a cap, bf16 to fp32", 1, 2.5, "times", 1, "",
        of("limit vit-b16 1"))
    row("the same, layer norms and GELUs computed again", 1, 2.5, "times", 1, "",
        of("limit vit-b16 2"))
    row("calls in captured steps that wait", -1, 0, "", 1, "", of("waits"))
    printf "\n%d targets: %d measured and judged, %d reached.", rows, judged, reached
    if (!same && !simulated && copy != "")
        printf(" Scaled from 4.3 TB/s and 790 Tflop/s to %.3g TB/s and %.4g Tflop/s.",
               copy * 1e-12, product * 1e-12)
    print (simulated ? " Nothing here is the speed of a GPU: this was a dry run." : "")
}' /dev/null $logs
