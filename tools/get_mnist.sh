#!/bin/sh
# Fetches the four MNIST files into a folder (default data/mnist), all or nothing:
#   sh tools/get_mnist.sh [FOLDER]
# MNIST_URL replaces the mirrors. Every file is checked against its SHA-256 before the folder
# appears under its name. Whatever goes wrong, one line says so and the status is 1.
set -u

folder=${1:-data/mnist}
mirrors=${MNIST_URL:-https://ossci-datasets.s3.amazonaws.com/mnist
https://storage.googleapis.com/cvdf-datasets/mnist}
files='train-images-idx3-ubyte.gz 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6'

has() { command -v "$1" >/dev/null 2>&1; }

fail() {
    echo "get_mnist: $1; going on without the MNIST files" >&2
    exit 1
}

fetch() { # fetch URL FILE
    if has curl; then
        curl -fsSL --connect-timeout 5 --max-time 60 -o "$2" "$1" 2>/dev/null
    else
        wget -q -T 10 -t 1 -O "$2" "$1" 2>/dev/null
    fi
}

hash_of() {
    if has sha256sum; then sha256sum "$1"
    elif has shasum; then shasum -a 256 "$1"
    else openssl dgst -sha256 -r "$1"
    fi | sed 's/[ *].*//'
}

fetch_all() { # fetch_all MIRROR: leaves the reason in $why
    while read -r name hash <&3; do
        fetch "$1/$name" "$temporary/$name" || { why="cannot fetch $1/$name"; return 1; }
        [ "$(hash_of "$temporary/$name")" = "$hash" ] || { why="$1/$name is damaged"; return 1; }
    done 3<<END
$files
END
}

[ -e "$folder" ] && fail "$folder is already there"
has curl || has wget || fail "neither curl nor wget is installed"
has sha256sum || has shasum || has openssl || fail "no tool to check SHA-256 with"
temporary=$folder.$$
mkdir -p "$temporary" || fail "cannot make $temporary"
trap 'rm -rf "$temporary"; rmdir "$(dirname "$folder")" 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM

why=
for mirror in $mirrors; do
    if fetch_all "${mirror%/}"; then
        mv "$temporary" "$folder" || fail "cannot make $folder"
        echo "get_mnist: MNIST is in $folder"
        exit 0
    fi
done
fail "$why"
