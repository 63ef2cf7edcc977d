#!/usr/bin/env bash
# Packs what a GPU machine without internet lacks into .whl/1, .whl/2, ...: our wheel and the packages below, each part at
# most LIMIT bytes. Run in the repository's root on a machine with internet (`make device-bundle` does):
#
#     benchmarks/device/bundle.sh [PYTHON [GROUP...]]     # PYTHON: one with pip, hatchling and our build requirements
#
# and there, with one part after the other where they cannot travel together:
#
#     python3 -m pip install --no-index --no-deps --no-compile --upgrade --target /tmp/site .whl/*/*.whl
#
# The GPU machine has Python 3.12 on x86-64 with NumPy, CuPy, PyTorch (whose cuDNN and CUPTI serve us too), ONNX, OpenCV
# and pytest. thin_wheel.py packs tighter: of CV-CUDA's code for ten GPU architectures it keeps that of the one in ARCH.
#
# Group tvm, only where it is named, is TVM's runtime without its compiler, which is larger than LIMIT, for programs that
# `python -m benchmarks.gpu.tvm_cuda --compile FOLDER` made elsewhere. Group tuner is TVM with its compiler, to tune there; its
# wheels go into a folder of their own.
#
# Group ort, only where it is named, is ONNX Runtime for CUDA. A wheel that is larger than LIMIT goes in pieces, NAME.whl.00 in
# one part, NAME.whl.01 in the next; there `cat .whl/*/NAME.whl.* > NAME.whl` comes first.
set -euo pipefail
PYTHON=${1:-python3}
shift || true
WANTED=${*:-core engines video checks peers}
ARCH=${ARCH:-90}
LIMIT=${LIMIT:-60000000}
HERE=$(dirname "$0")
CACHE=benchmarks/.cache/wheels
ABI="--python cp312"
PACKAGES=( # group | requirement | arguments of thin_wheel.py
    "core|apache-tvm-ffi==0.1.15|$ABI"
    "core|pydantic==2.14.3|$ABI"
    "core|pydantic-core==2.50.4|$ABI"
    "core|annotated-types==0.8.0|$ABI"
    "core|typing-inspection==0.4.5|$ABI"
    "video|av==19.0.2|--python abi3"
    "video|PyNvVideoCodec==2.2.4|$ABI --drop samples/|\.data/|/lib(av|sw)\w+\.so(\.\d+\.\d+\.\d+)?$"
    "engines|nvidia-cudnn-frontend==1.32.0|$ABI --drop include/|^cudnn/(?!engines|frost)\w+/\w+/"
    "checks|pycocotools==2.0.11|$ABI"
    "checks|faster-coco-eval==1.8.0|$ABI"
    "checks|cupti-python==13.0.1|$ABI"
    "tvm|apache-tvm==0.27.0.post1|$ABI --drop ^tvm/(3rdparty|include|src|web)/|libtvm_compiler"
    "tuner|apache-tvm==0.27.0.post1|$ABI --drop ^tvm/(3rdparty|include|src|web)/"
    "tuner|apache-tvm-ffi==0.1.14.post1|$ABI"
    "tuner|cloudpickle==3.1.3|$ABI"
    "tuner|psutil==7.2.2|$ABI"
    "peers|cvcuda-cu13==0.19.0|$ABI --arch $ARCH"
    "ort|onnxruntime-gpu==1.31.1|$ABI --arch $ARCH"
)

fetched() { # fetched REQUIREMENT: path of its wheel in the cache, downloaded once
    local pattern
    pattern=$CACHE/$(tr '[:upper:]-' '[:lower:]_' <<< "${1%%==*}")-${1##*==}-*.whl
    if ! compgen -G "$pattern" > /dev/null; then
        "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 \
            --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$CACHE" "$1" >&2
    fi
    compgen -G "$pattern"
}

part=1 filled=0
put() { # put WHEEL: into the part that is being filled, or the next
    local size piece
    size=$(stat -c %s "$1")
    if [ "$size" -gt "$LIMIT" ]; then
        split -b "$LIMIT" -d "$1" ".whl/$(basename "$1")."
        for piece in ".whl/$(basename "$1")".??; do
            put "$piece"
            rm "$piece"
        done
        return
    fi
    if [ $((filled + size)) -gt "$LIMIT" ]; then
        part=$((part + 1)) filled=0
    fi
    filled=$((filled + size))
    mkdir -p ".whl/$part"
    cp "$1" ".whl/$part/"
}

mkdir -p "$CACHE/thin-$ARCH" .whl
rm -rf .whl/*
for group in $WANTED; do
    if [ "$group" = core ]; then
        "$PYTHON" -m pip wheel -q --no-deps --no-build-isolation --disable-pip-version-check -w .whl/new .
        put .whl/new/framefuse-*.whl
        rm -r .whl/new
    fi
    found=
    for line in "${PACKAGES[@]}"; do
        IFS='|' read -r name requirement arguments <<< "$line"
        [ "$name" = "$group" ] || continue
        found=yes
        wheel=$(fetched "$requirement")
        thin=$CACHE/thin-$ARCH/$(basename "$wheel")
        # shellcheck disable=SC2086 # several arguments
        [ -e "$thin" ] || "$PYTHON" "$HERE/thin_wheel.py" "$wheel" "$thin" $arguments
        put "$thin"
    done
    [ -n "$found" ] || { echo "no group $group: core, engines, video, checks, peers, tvm, tuner or ort" >&2; exit 1; }
done
ls -l .whl/*/
du -csb .whl/*/ | sed 's/\([0-9]*\)[0-9]\{6\}\t/\1 MB /'
