"""What a user is told when something goes wrong on a GPU: each fault made for real, on the command line.

    python -m benchmarks.gpu.faults [--only WORD] [--folder FOLDER]     the record gpu_faults

Tests decide whether the answers are right (tests/runtime/test_cuda_faults.py); here they are to be read. A neighbour is
another process that leaves only so much of the GPU's memory. Nothing is timed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from benchmarks.protocol import read, save
from framefuse.common.ort import onnxruntime
from training.squares_clip import squares_clip

SECONDS = 90
"""That a command may take."""
HELD_SECONDS = 150
"""After which a neighbour whose parent has died gives the memory back."""
PROGRAMS = {
    "framefuse": f'#!/bin/sh\nexec {sys.executable} -m framefuse "$@"\n',
    "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    "without.py": """
import sys
sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
from framefuse.cli.entry import start
start()
""",
    "kill.py": """
import sys
from framefuse import Pipeline
from framefuse.errors import FramefuseError
from framefuse.cuda import kernel

pipeline = Pipeline("clip.mp4", "squares", device="cuda", save=True, save_json=True, name="killed")
try:
    for number, result in enumerate(pipeline):
        if number == 100:
            kernel.launch("mask_argmax_f32", scores_address=64, score_item=0, class_pitch=0, target_address=64,
                        target_item=0, n=1, classes=1, pixels=1024, foreground=-1)
except FramefuseError as error:
    print(f"error: {type(error).__name__}: {error.message}\\n  -> {error.remedy}", file=sys.stderr)
    sys.exit(error.exit_code)
""",
    "interrupt.py": """
import signal, subprocess, sys, time
from pathlib import Path

run = subprocess.Popen(["framefuse", *sys.argv[2:]])
while run.poll() is None and not (Path(sys.argv[1]).exists() and Path(sys.argv[1]).stat().st_size > 1 << 16):
    time.sleep(0.01)  # nobody tells when another process has written
run.send_signal(signal.SIGINT)
sys.exit(run.wait())
""",
    "left.py": """
import json, sys
from pathlib import Path
import av

for path in sorted(Path("runs/predict", sys.argv[1]).iterdir()):
    if path.suffix == ".mp4":
        print(path.name, sum(1 for _ in av.open(str(path)).decode(video=0)), "frames can be played")
    elif path.suffix == ".jsonl":
        print(path.name, len([json.loads(line) for line in path.read_text().splitlines()]), "frames")
    elif path.suffix == ".json":
        print(path.name, "is whole JSON:", type(json.loads(path.read_text())).__name__)
""",
}
"""Written beside the clips: commands run there as they are shown."""
NOTES = re.compile(
    r"error|warning|choice +engine|  ->|choice .*(anew|rebuilt|stale|kernels measured|in flight|no room)|wrote"
    r"|[\d,]+ frames"
)
"""How lines begin that are shown."""
MOST = 12
"""Lines."""
LONGEST = 300
"""Letters of a line."""


@dataclass(frozen=True)
class Fault:
    title: str
    command: str
    """For a shell, in the folder of the clips; `framefuse` is this one."""
    free_mb: int = 0
    """Of the GPU's memory, left by a neighbour; 0: there is none."""
    then: str = ""
    """Files; once one of them has something in it the neighbour takes the rest as well."""
    left: str = ""
    """The run whose files are looked at afterwards."""


PLAIN = "framefuse predict clip.mp4 squares"
SURFACE = "squares --device cuda --json -q | grep -o 'decoded by [FN][^\"]*'"
SCOUT = "framefuse predict tall.mp4 scout-n --device cuda"
KERNELS = "cache/framefuse/cudnn"
FAULTS = (
    Fault("A GPU that is not there", f"{PLAIN} --device cuda:9"),
    Fault("One of several that is not there", "framefuse predict eight/ squares --gpus 0,9"),
    Fault("CUDA_VISIBLE_DEVICES is empty", f"CUDA_VISIBLE_DEVICES= {PLAIN} --device cuda"),
    Fault("CUDA_VISIBLE_DEVICES names none that is there", f"CUDA_VISIBLE_DEVICES=7 {PLAIN} --device cuda"),
    Fault("No CuPy", "python without.py cupy predict clip.mp4 squares --device cuda"),
    Fault("No cuDNN", "python without.py cudnn predict clip.mp4 scout-n --device cuda"),
    Fault("A model that engine cudnn cannot take", f"{PLAIN} --device cuda"),
    Fault("An engine that leaves nothing on the GPU", f"{PLAIN} --device cuda --engine openvino"),
    Fault("A precision that the engine lacks", "framefuse predict clip.mp4 scout-n --device cuda --precision bf16"),
    Fault("Too little memory to start CUDA", f"{PLAIN} --device cuda", 300),
    Fault("Too little memory for the batch", "framefuse predict clip.mp4 scout-n --device cuda --batch 64 --imgsz 1920",
          1400),
    Fault("The same in ONNX Runtime", f"{PLAIN} --device cuda --batch 64 --imgsz 1920", 1400),
    Fault("Memory for the batches, not for the decoder", f"{PLAIN} --device cuda --engine null --batch 64 --imgsz 1920",
          5200),
    Fault("Memory that runs out in flight: the next video needs another graph",
          "framefuse predict -s long.mp4 -s tall.mp4 -m squares --device cuda --engine null --readers 1 --batch 8"
          " --imgsz 1920 --name flight", 2900, then="runs/predict/flight/*.jsonl", left="flight"),
    Fault("A kernel that kills the context, while an MP4 and a COCO file are written", "python kill.py", left="killed"),
    Fault("One corrupt stream of eight", "framefuse predict eight/ squares --device cuda --name eight", left="eight"),
    Fault("Images that change size in the stream",
          "framefuse predict changing.h264 squares --device cuda --name changing", left="changing"),
    Fault("A surface that NVDEC does not give: 4:4:4", f"framefuse predict 444.h264 {SURFACE}"),
    Fault("The same: 4:2:2 of 10 bits", f"framefuse predict 422.h264 {SURFACE}"),
    Fault("Two processes on one GPU", f"{PLAIN} --device cuda --name one & {PLAIN} --device cuda --name two; wait;"
          " cmp runs/predict/one/clip.jsonl runs/predict/two/clip.jsonl && echo '0 frames differ'"),
    Fault("Kernels that were measured on another GPU",
          f"{SCOUT} -q; sed -i 's/NVIDIA [A-Z0-9 ]*/NVIDIA L4/' {KERNELS}/*.json;"
          f" mv {KERNELS}/*.json {KERNELS}/l4.json; {SCOUT}"),
    Fault("Measurements that were cut off", f"rm {KERNELS}/l4.json; truncate -s 1000 {KERNELS}/*.json; {SCOUT}"),
    Fault("Built kernels that are damaged",
          f"for file in {KERNELS}/*/*; do echo damaged > $file; done; {SCOUT}"),
    Fault("Ctrl-C in the middle", "python interrupt.py runs/predict/stopped/long.jsonl predict long.mp4 squares"
          " --device cuda --save --name stopped", left="stopped"),
)  # fmt: skip


def make_clips(folder: Path) -> None:
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    squares_clip(folder / "clip.mp4", frames=300, size=(1280, 720))
    squares_clip(folder / "tall.mp4", frames=60, size=(360, 640))
    squares_clip(folder / "long.mp4", frames=3000, size=(640, 360))
    eight = folder / "eight"
    eight.mkdir()
    for number in range(8):
        shutil.copy(folder / "clip.mp4", eight / f"{number}.mp4")
    data = bytearray((eight / "5.mp4").read_bytes())
    span = slice(len(data) // 3, len(data) // 2)
    data[span] = random.Random(0).randbytes(len(data[span]))
    (eight / "5.mp4").write_bytes(data)
    sizes = (640, 360), (360, 640), (1280, 720)
    (folder / "changing.h264").write_bytes(b"".join(h264(folder, size) for size in sizes))
    (folder / "444.h264").write_bytes(h264(folder, sizes[0], "yuv444p"))
    (folder / "422.h264").write_bytes(h264(folder, sizes[0], "yuv422p10le"))


def h264(folder: Path, size: tuple[int, int], pixel_format: str = "yuv420p") -> bytes:
    """Forty images as an elementary stream, which may follow another."""
    path = folder / "part.h264"
    with av.open(str(path), "w", format="h264") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = *size, pixel_format
        for number in range(40):
            image = np.zeros((size[1], size[0], 3), np.uint8)
            image[40:120, 20 + 3 * number : 100 + 3 * number] = 255, 0, 0
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame.reformat(format=pixel_format)))
        container.mux(stream.encode())
    data = path.read_bytes()
    path.unlink()
    return data


@contextmanager
def neighbour(free_mb: int, then: str, folder: Path, surroundings: dict[str, str]) -> Iterator[None]:
    """A process that holds the rest of the GPU's memory."""
    if not free_mb:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.gpu.faults", "--leave", str(free_mb), "--then", then]
    with subprocess.Popen(command, cwd=folder, env=surroundings, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "held\n":
                raise RuntimeError("the neighbour could not take the GPU's memory")
            yield
        finally:
            process.kill()


def hold(free_mb: int, then: str) -> None:
    """Be the neighbour, until somebody ends this process."""
    signal.alarm(HELD_SECONDS)
    take(free_mb << 20)
    print("held", flush=True)
    while then and not any(path.stat().st_size for path in Path().glob(then)):
        time.sleep(0.01)  # nobody tells when another process has written
    if then:
        take(1 << 20)
    signal.pause()


def take(left: int) -> None:
    """Allocate the GPU's memory for ever, but for so many bytes."""
    from cupy.cuda import runtime

    size = 1 << 36
    while size >= 1 << 20 and (free := runtime.memGetInfo()[0]) > left:
        try:
            runtime.malloc(min(size, free - left))
        except runtime.CUDARuntimeError:
            size //= 2


def answer(fault: Fault, folder: Path) -> str:
    """The section of one fault."""
    sought = (str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place)
    surroundings = {
        **os.environ,
        "COLUMNS": "400",
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sought),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def run(command: str) -> tuple[str, list[str]]:
        with subprocess.Popen(["bash", "-c", command], cwd=folder, env=surroundings, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as shell:  # fmt: skip
            try:
                said, _ = shell.communicate(timeout=SECONDS)
                return str(shell.returncode), said.splitlines()
            except subprocess.TimeoutExpired:
                return f"none in {SECONDS} s", []
            finally:
                with suppress(ProcessLookupError):  # what the shell has started, too
                    os.killpg(shell.pid, signal.SIGKILL)

    with neighbour(fault.free_mb, fault.then, folder, surroundings):
        code, lines = run(fault.command)
    lines = [line for line in lines if NOTES.match(line) or "grep" in fault.command][:MOST]
    lines += run(f"python left.py {fault.left}")[1] if fault.left else []
    said = "\n".join(f"    {line.replace(f'{folder}/', '')[:LONGEST]}" for line in lines)
    memory = f", a neighbour leaves {fault.free_mb:,} MB" if fault.free_mb else ""
    return f"`{fault.command}`{memory}: exit code {code}\n\n{said}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="faults with this word in their title; the others stay in the record"
    )
    parser.add_argument("--folder", type=Path, help="kept: clips, outputs and measured kernels")
    parser.add_argument("--leave", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--then", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.leave is not None:
        hold(args.leave, args.then)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    if not args.only and "CUDAExecutionProvider" not in onnxruntime("cuda13").get_available_providers():
        parser.error("the page is about engines that are there, and this ONNX Runtime has no CUDA")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "eight").exists():
            make_clips(folder)
        sections = read("gpu_faults")["faults"] if args.only else {}
        for fault in FAULTS:
            if args.only.lower() in fault.title.lower():
                sections[fault.title] = answer(fault, folder)
                print(sections[fault.title], flush=True)
                found = {fault.title: sections[fault.title] for fault in FAULTS if fault.title in sections}
                save("gpu_faults", {"faults": found}, "CUDA program", "pipeline", "engine cudnn", "sink")


if __name__ == "__main__":
    main()
