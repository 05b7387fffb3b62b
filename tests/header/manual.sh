#!/bin/sh
# Makes the reference page in the current folder and checks what it is made of: manual.sh TOP CC
set -eu
top=$1 cc=$2
$cc -std=c11 -O1 -Wall -Wextra -Werror -o reference "$top/tools/reference.c"
./reference --check "$top/mptrain.h" "$top/tests/api_shown.c" "$top/README.md"
./reference "$top/mptrain.h" "$top/tests/api_shown.c" reference.md

# Code of the manual that is no whole program, each block as the body of a function.
awk '/^## Basic types/ { exit } /^```$/ { on = !on; n += on; next }
    on { print > ("manual" n ".txt") }' reference.md
fragments=0
for block in manual*.txt; do
    if grep -q -e 'int main' -e '__global__' "$block" || ! grep -q '^ *mpt_.*);' "$block"; then continue; fi
    {
        echo '#include <stdio.h>'
        echo '#include "mptrain.h"'
        echo 'void update_and_draw(void);'
        echo 'struct fit { mpt_module net; mpt_tensor x, y; };'
        awk '/^static .*\) {$/ { on = 1 } on { print } /^}$/ { on = 0 }' "$block"
        for end in ';' ' {'; do
            echo 'void fragment(mpt_context *ctx, mpt_optimizer optimizer, mpt_module net,'
            echo '              mpt_loader loader, mpt_batch b, int model, mpt_captured captured,'
            echo "              mpt_tensor x, mpt_tensor y, bool running)$end"
        done
        echo '    (void)ctx, (void)optimizer, (void)net, (void)loader, (void)b, (void)model;'
        echo '    (void)captured, (void)x, (void)y, (void)running;'
        echo '    {'
        awk '/^static .*\) {$/ { on = 1 } !on { print } /^}$/ { on = 0 }' "$block"
        echo '    }'
        echo '}'
    } >"${block%.txt}.c"
    $cc -std=c11 -Wall -Wno-unused-variable -Werror -I"$top" -fsyntax-only "${block%.txt}.c"
    fragments=$((fragments + 1))
done
echo "$fragments fragments compile"
[ $fragments -ge 2 ]
