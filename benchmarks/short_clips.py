"""Many short clips in one run on a CPU, beside one file of the same frames.

    python -m benchmarks.short_clips [--clips 200] [--frames 5 20] [--rounds 3] [--before FOLDER]

Each side is the command `framefuse predict` with scout-n, start-up included; sides take turns in a random order. The
clips are 1280x720. FOLDER: the `src` of an earlier version, with its kernels built, which reads the same clips.
`seconds`: medians; `ratio`: to the clips in the same round, the median of the rounds. The record is short_clips.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.clips import Clip, long_clip, write_video
from benchmarks.protocol import save

GROUPS = "program", "pipeline", "fleet", "engine openvino"
MODEL, SIZE = "scout-n", Clip(1280, 720)
OURS, FILE, BEFORE = "clips", "one file", "clips, before"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--frames", type=int, nargs="+", default=[5, 20], help="of each clip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for frames in args.frames:
            folder = Path(made) / str(frames)
            folder.mkdir()
            first = folder / "0000.mp4"
            write_video(SIZE, first, frames=frames)
            whole = long_clip(first, Path(made) / f"{frames}.mp4", args.clips)
            for number in range(1, args.clips):
                shutil.copy(first, folder / f"{number:04}.mp4")
            source = Path(__file__).parents[1] / "src"
            sides = {OURS: (f"{folder}/*.mp4", source), FILE: (str(whole), source)}
            if args.before:
                sides[BEFORE] = (f"{folder}/*.mp4", args.before)
            times: dict[str, list[float]] = {side: [] for side in sides}
            for number in range(args.rounds):
                for side in random.Random(number).sample(list(sides), len(sides)):
                    times[side].append(seconds(*sides[side]))
                    print(frames, side, round(times[side][-1], 2), flush=True)
            for side, found in times.items():
                ratio = median(one / ours for one, ours in zip(found, times[OURS], strict=True))
                rows.append({"frames": frames, "side": side, "seconds": median(found), "ratio": ratio})
    save("short_clips", {"clips": args.clips, "model": MODEL, "rows": rows}, *GROUPS)


def seconds(what: str, source: Path) -> float:
    """From the start of the command to its end."""
    with tempfile.TemporaryDirectory() as outputs:
        options = "--device", "cpu", "--project", outputs, "--quiet"
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "framefuse", "predict", what, MODEL, *options], check=True,
                       env=os.environ | {"PYTHONPATH": str(source)})  # fmt: skip
        return time.perf_counter() - begun


if __name__ == "__main__":
    main()
