"""Runs that are killed or signalled at random times, with every kind of output, and what is left of the outputs.

    python tests/faults/endings.py [--kills 80] [--signals 100] [--seed 0] [--record FILE.json]

After `kill -9` and `framefuse repair` every output must be readable; after SIGINT, SIGTERM and SIGHUP at once, with a
report that counts the frames in the outputs.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import av

from command_line import COMMAND
from media import video

FPS = 25
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
LOST_SECONDS = 1.0
"""Of video, at most."""
LATEST = 4.0
"""Seconds after the start until which a run is ended; the first output comes after about one."""


@dataclass
class Outcome:
    runs: int = 0
    before_the_first_output: int = 0
    repaired: int = 0
    """Files that `framefuse repair` completed."""
    frames: int = 0
    """In the JSON lines of all runs."""
    findings: list[str] = field(default_factory=list)


def make_clip(folder: Path) -> Path:
    return video(
        folder / "clip.mp4", frames=3000, size=(320, 240), rate=FPS, audio=True, options={"preset": "ultrafast"}
    )


def start(clip: Path, project: Path) -> subprocess.Popen[str]:
    outputs = ["--save", "--save-jsonl", "--save-csv", "--save-json", "--save-txt"]
    command = [*COMMAND, "predict", clip, "squares", "--imgsz", "160", *outputs, "--project", project, "--name", "run"]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill(clip: Path, folder: Path, after: float, outcome: Outcome) -> None:
    """`kill -9` so many seconds after the start, then repair."""
    process = start(clip, folder)
    time.sleep(after)
    process.kill()
    process.communicate()
    outcome.runs += 1
    run = folder / "run"
    if not run.exists():
        outcome.before_the_first_output += 1
        return
    done = subprocess.run([*COMMAND, "repair", str(run)], capture_output=True, text=True, timeout=120)
    if done.returncode:
        outcome.findings.append(f"killed after {after:.2f} s: repair failed: {done.stdout}{done.stderr}")
    outcome.repaired += sum("completed" in line or "removed" in line for line in done.stdout.splitlines())
    outcome.findings += [f"killed after {after:.2f} s: {text}" for text in unreadable(run, outcome)]


def interrupt(clip: Path, folder: Path, number: int, after: float, outcome: Outcome) -> None:
    """A signal so many seconds after the start."""
    process = start(clip, folder)
    time.sleep(after)
    process.send_signal(number)
    try:
        error = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        outcome.findings.append(f"{signal.Signals(number).name} after {after:.2f} s: no end")
        return
    outcome.runs += 1
    title = f"{signal.Signals(number).name} after {after:.2f} s"
    run = folder / "run"
    # Before Python has installed its handlers, the system ends the process by the signal.
    if process.returncode not in (INTERRUPTED, -number) or "Traceback" in error:
        outcome.findings.append(f"{title}: exit code {process.returncode}: {error[-300:]}")
    if not run.exists():
        outcome.before_the_first_output += 1
        return
    outcome.findings += [f"{title}: {text}" for text in unreadable(run, outcome)]
    if not (run / "report.json").exists():
        outcome.findings.append(f"{title}: there is no report")
        return
    report = json.loads((run / "report.json").read_text())
    lines = count_lines(run / "clip.jsonl")
    if report["frames"] != lines:
        outcome.findings.append(f"{title}: the report counts {report['frames']} frames, the outputs have {lines}")


def count_lines(path: Path) -> int:
    return len([json.loads(line) for line in path.read_text().splitlines()]) if path.exists() else 0


def unreadable(run: Path, outcome: Outcome) -> list[str]:
    """What is wrong with the outputs of a run."""
    found = []
    try:
        frames = count_lines(run / "clip.jsonl")
        outcome.frames += frames
        rows = list(csv.DictReader((run / "clip.csv").open())) if (run / "clip.csv").exists() else []
        if any(None in row.values() for row in rows):
            found.append("a row of the CSV is not complete")
        if (path := run / "clip.json").exists():
            images = len(json.loads(path.read_text())["images"])
            if abs(images - frames) > 3:
                found.append(f"the COCO JSON has {images} images, the JSON lines {frames}")
        elif frames > 3:
            found.append("there is no COCO JSON")
        if (path := run / "clip.mp4").exists():
            with av.open(str(path)) as container:
                shown = sum(1 for _ in container.decode(video=0))
            if frames - shown > LOST_SECONDS * FPS:
                found.append(f"the video has {shown} frames, the JSON lines {frames}")
        elif frames > LOST_SECONDS * FPS:
            found.append("there is no video")
        for path in (run / "labels").glob("*.txt") if (run / "labels").exists() else ():
            if any(len(line.split()) not in (5, 6) for line in path.read_text().splitlines()):
                found.append(f"{path.name} has an unfinished line")
        found += [f"{path.name} is left" for path in run.glob("*.part")]
    except (ValueError, KeyError, OSError, av.FFmpegError) as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=80)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    # A job in the background inherits signals that are ignored, and would hand that on to the runs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    random, kills, signals = Random(options.seed), Outcome(), Outcome()
    with tempfile.TemporaryDirectory() as scratch:
        clip = make_clip(Path(scratch))
        for number in range(options.kills):
            kill(clip, Path(scratch, f"kill{number}"), random.uniform(0.0, LATEST), kills)
        for number in range(options.signals):
            folder = Path(scratch, f"signal{number}")
            interrupt(clip, folder, SIGNALS[number % len(SIGNALS)], random.uniform(0.0, LATEST), signals)
    facts = {"kills": asdict(kills), "signals": asdict(signals)}
    print(json.dumps(facts, indent=1))
    if options.record:
        options.record.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if kills.findings or signals.findings else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
