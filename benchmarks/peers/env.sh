#!/usr/bin/env bash
# Makes the environment in which the peers of benchmarks/cpu/end_to_end.py and views.py run. It is never a dependency of framefuse:
# ultralytics is AGPL-3.0 and is only measured, from outside, in processes of its own.
#
#   benchmarks/peers/env.sh [FOLDER]        default: .venv-peers; PYTHON=python3.11 chooses the interpreter
#
# CPU builds only. `torch==X+cpu` is a local version that no CUDA wheel satisfies, so pip cannot pull the CUDA stack;
# everything that depends on torch is installed with --no-deps for the same reason.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${1:-.venv-peers}"
torch_index="https://download.pytorch.org/whl/cpu"

"${PYTHON:-python3.11}" -m venv "$folder"
pip="$folder/bin/pip"

"$pip" install --quiet --retries 0 --extra-index-url "$torch_index" "torch==2.13.0+cpu"
"$pip" install --quiet \
    numpy==2.4.6 av==18.1.0 onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 opencv-python-headless==5.0.0.93 \
    nncf==3.4.0 psutil requests pyyaml pillow matplotlib polars defusedxml pydeprecate scipy tqdm
# Both ask for the opencv-python wheel (with a GUI), which would overwrite the headless one file by file.
"$pip" install --quiet --no-deps ultralytics==8.4.190 ultralytics-thop==2.2.3 supervision==0.29.1 sahi==0.12.8
"$pip" install --quiet shapely fire click

# PyPI's torchvision is built against CUDA and does not import over a CPU torch. PyTorch's own index has the CPU build;
# where it cannot be reached, a stand-in gives ultralytics the one function it calls (see torchvision_standin/).
standin="$(mktemp --directory)"
cp -r "$here/torchvision_standin/." "$standin"  # building leaves files beside the source
"$pip" install --quiet --no-deps --retries 0 --index-url "$torch_index" "torchvision==0.28.0+cpu" 2>/dev/null ||
    "$pip" install --quiet --no-deps --no-build-isolation "$standin"
rm -rf "$standin"

if "$pip" list --format=freeze | grep --ignore-case --extended-regexp '^(nvidia|cuda|triton)'; then
    echo "a CUDA package was installed; remove $folder and report this" >&2
    exit 1
fi
YOLO_AUTOINSTALL=false YOLO_OFFLINE=true "$folder/bin/python" -c '
import cv2, onnxruntime, openvino, supervision, torch, torchvision, ultralytics
for module in (ultralytics, torch, torchvision, onnxruntime, openvino, cv2, supervision):
    print(f"{module.__name__:12s} {module.__version__}")'
