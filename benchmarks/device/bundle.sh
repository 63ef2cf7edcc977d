#!/usr/bin/env bash
# Puts what a GPU machine without internet lacks into .whl/: our wheel, and what the kernels' tests and benchmarks import.
# Run in the repository's root on a machine with internet:
#
#     benchmarks/device/bundle.sh [PYTHON]     # PYTHON: one with pip, hatchling, and the build requirements of pyproject.toml
#
# The GPU machine has Python 3.12 on x86-64 with NumPy, CuPy, PyTorch, OpenCV and pytest. thin_wheel.py packs CV-CUDA
# (128 MB, code for ten GPU architectures; 28 MB with that of the one in ARCH) and PyAV (35 MB; 26) tighter.
set -euo pipefail
PYTHON=${1:-python3}
ARCH=${ARCH:-90}
HERE=$(dirname "$0")
CACHE=benchmarks/.cache/wheels
LIMIT=60000000
declare -A REQUIREMENTS=( # requirement -> arguments of thin_wheel.py
    ["apache-tvm-ffi==0.1.15"]="--python cp312"
    ["av==19.0.2"]="--python abi3"
    ["pycocotools==2.0.11"]="--python cp312"
    ["cvcuda-cu13==0.19.0"]="--python cp312 --arch $ARCH"
)

mkdir -p "$CACHE/thin-$ARCH" .whl
rm -f .whl/*.whl
"$PYTHON" -m pip wheel -q --no-deps --no-build-isolation --disable-pip-version-check -w .whl .
for requirement in "${!REQUIREMENTS[@]}"; do
    name=${requirement%%==*}
    pattern="$CACHE/${name//-/_}-${requirement##*==}-*.whl"
    if ! compgen -G "$pattern" > /dev/null; then
        "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 \
            --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$CACHE" "$requirement"
    fi
    wheel=$(compgen -G "$pattern")
    thin=$CACHE/thin-$ARCH/$(basename "$wheel")
    # shellcheck disable=SC2086 # several arguments
    [ -e "$thin" ] || "$PYTHON" "$HERE/thin_wheel.py" "$wheel" "$thin" ${REQUIREMENTS[$requirement]}
    cp "$thin" .whl/
done
ls -l .whl
total=$(du -cb .whl/*.whl | tail -1 | cut -f1)
echo "total $((total / 1000000)) MB"
if [ "$total" -gt "$LIMIT" ]; then
    echo "more than $((LIMIT / 1000000)) MB: leave a requirement out, or send it in parts" >&2
    exit 1
fi
