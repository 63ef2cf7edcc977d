"""Which sources can change a result: a hash of each group, kept in its record.

`python -m benchmarks.results` compares the recorded hashes with those of the sources as they are, and writes beside
each table which groups have changed since. Comments, docstrings and blank lines do not count: they change no number.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import tokenize
from functools import cache
from pathlib import Path

BENCHMARKS = Path(__file__).parent

GROUPS: dict[str, tuple[str, ...]] = {
    "CPU kernel": ("kernels/*.py", "kernels/*/*.py", "!*cuda*", "!reference.py", "!tracking/*"),
    "CUDA kernel": ("kernels/*/*.py", "kernels/*/*.cu*", "cuda/*.py", "cuda/*.cuh", "!tir_cpu*", "!reference.py",
                    "!tracking/*"),
    "network kernel": ("kernels/network/*.*", "kernels/boxes/head*", "kernels/boxes/levels*",
                       "kernels/boxes/common.cuh", "cuda/*.py", "cuda/*.cuh"),
    "program": ("frame.py", "prediction.py", "preprocess.py", "runtime/program.py", "runtime/ledger.py",
                "postprocess/*.py"),
    "CUDA program": ("runtime/cuda/*.py", "sources/nvdec.py"),
    "pipeline": ("pipeline.py", "runtime/stages.py", "runtime/channel.py", "runtime/batching.py", "runtime/readers.py",
                 "runtime/inputs.py", "runtime/choices.py", "runtime/plan.py", "runtime/requested_sinks.py",
                 "runtime/threads.py", "runtime/tracking.py", "sources/*.py"),
    "model call": ("runtime/model.py",),
    "batching": ("batching/*.py", "runtime/batcher.py", "runtime/runners.py"),
    "tracking": ("tracking/*.py", "kernels/tracking/*.py", "benchmarks/tracking.py"),
    "views": ("runtime/views.py",),
    "sink": ("sinks/*.py",),
    "matting": ("runtime/matting.py", "benchmarks/segmentation.py"),
    "fleet": ("fleet/*.py",),
    "engine openvino": ("engines/openvino.py",),
    "engine onnxruntime": ("engines/onnxruntime.py", "engines/requests.py"),
    "engine torch": ("engines/torch/*.py", "!selftest.py", "engines/requests.py"),
    "engine cudnn": ("engines/cudnn/*.py", "!selftest.py"),
    "engine tvm": ("engines/tvm/*.py", "!selftest.py"),
    "engine tensorrt": ("engines/tensorrt/*.py", "!selftest.py"),
    "engine benchmark": ("lab/bench*.py",),
    "model": ("models/weights/*", "!scout-n-pose*"),
    "lowering": ("models/fp16.py", "models/int8.py", "lab/lowering/*.py"),
    "evaluation": ("lab/evaluation/*.py",),
    "adaptive": ("adaptive/*.py", "kernels/tracking/*.py", "runtime/adaptive.py", "lab/adaptive_bench.py",
                 "benchmarks/adaptive.py"),
    "sweep": ("lab/sweep/*.py", "tracking/*.py", "kernels/tracking/*.py", "sinks/parquet.py", "prediction.py"),
    "parity": ("lab/parity/*.py",),
    "synthetic world": ("world/*.py",),
    "peer": ("benchmarks/peers/*.py", "benchmarks/models.py", "benchmarks/scene.py", "benchmarks/clips.py"),
    "selfie": ("benchmarks/selfie.py", "benchmarks/tflite.py", "benchmarks/peers/selfie.py"),
    "kernel benchmark": ("benchmarks/kernels/*.py",),
}  # fmt: skip
"""Files of the package, or of benchmarks/, by the name of their group; a pattern with `!` leaves names out."""


@cache
def package() -> Path:
    """What is imported, which may be a wheel. The peers' environment does not have it, and stamps nothing."""
    spec = importlib.util.find_spec("framefuse")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("framefuse is not installed here: there are no sources to hash")
    return Path(spec.origin).parent


def files(group: str) -> list[Path]:
    """The files of a group, sorted by path."""
    left_out = [pattern[1:] for pattern in GROUPS[group] if pattern.startswith("!")]
    found: set[Path] = set()
    for pattern in GROUPS[group]:
        ours = pattern.startswith("benchmarks/")
        if not pattern.startswith("!"):
            found |= set((BENCHMARKS if ours else package()).glob(pattern.removeprefix("benchmarks/")))
    return sorted(path for path in found if path.is_file() and not any(path.match(pattern) for pattern in left_out))


@cache
def group_hash(group: str) -> str:
    """Twelve hex digits that change with the code of any source of a group, wherever the package lies."""
    digest = hashlib.sha256()
    for path in files(group):
        content = path.read_bytes()
        digest.update(
            path.name.encode() + b"\0" + (code(content.decode()).encode() if path.suffix == ".py" else content)
        )
    return digest.hexdigest()[:12]


def code(source: str) -> str:
    """Python source without comments, docstrings, trailing spaces and blank lines."""
    lines = source.splitlines()
    gone: list[tuple[int, int, int, int]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None and node.end_col_offset is not None
            gone.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            gone.append((row, len(lines[row - 1][:column].encode()), row, len(lines[row - 1].encode())))
    raw = [line.encode() for line in lines]  # columns of ast are bytes
    for first, begin, last, end in sorted(gone, reverse=True):
        raw[first - 1 : last] = [raw[first - 1][:begin] + raw[last - 1][end:], *[b""] * (last - first)]
    return "\n".join(line for line in (line.decode().rstrip() for line in raw) if line)


def stamp(*groups: str) -> dict[str, str]:
    """Hash of each group that a result depends on."""
    return {group: group_hash(group) for group in groups}


def changed(sources: dict[str, str]) -> list[str]:
    """The groups whose sources are not those of a record; a group that is not known any more has changed."""
    return [group for group, recorded in sources.items() if group not in GROUPS or group_hash(group) != recorded]
