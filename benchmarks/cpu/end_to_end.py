"""Video file to detections: speed, processor time and memory of framefuse beside what a user would have picked.

    python -m benchmarks.cpu.end_to_end [--peers-python .venv-peers/bin/python] [--rounds 4] [--clip 1080p] [--save]
    python -m benchmarks.cpu.end_to_end --model scout-n       # a trained model on a synthetic street, with its accuracy

A clip of 300 H.264 frames goes through the model at confidence 0.25. Every peer (peers/run.py) runs in a process of its
own, one at a time, and one run of each makes a round, in a new order each time, so that whatever else the machine does
falls on all of them alike. Reported are medians over the rounds, and the ratios to the baseline (what most people run)
and to the strongest competitor: the fastest row that is not framefuse's, whatever engine and precision it uses.

YOLOv8n has random weights: it costs what a trained one costs, but INT8 has no accuracy to lose, so its INT8 file is
built with --allow-loss. scout-n and scout-s are trained, and each of our rows says its mAP50-95 on the very frames that
are timed. INT8 of all sides is calibrated on other frames than those that are timed.

--save compares the rows that also write an annotated video; --neighbour keeps one other process busy meanwhile, which
is the normal state of a robot or a server. The table goes to stdout, JSON to its last line.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.clips import CACHE, CLIPS, FRAMES, STREET, clip, street
from benchmarks.models import model
from benchmarks.peers.run import PEERS, WARMUP
from benchmarks.protocol import ROOT, save
from framefuse.models import SHIPPED, find_model

BASELINES = {"usual": "ultralytics_onnx", "save": "ultralytics_save", "trained": "trained_opencv_ort_script"}
FIGURES = ("fps", "cpu_ms_per_frame", "peak_rss_mb", "boxes_per_frame")
TRAINED = ("scout-n", "scout-s")
TIMEOUT_SECONDS = 600
GROUPS = ("CPU kernel", "program", "pipeline", "engine openvino", "peer")

Report = dict[str, Any]


def model_files(name: str, kinds: set[str], python: Path, our_python: Path) -> dict[str, Path]:
    """The model as every kind of file that there is of it; the OpenVINO folders are made in the peers' environment."""
    trained = name in TRAINED
    dynamic = find_model(name) if trained else model(name)
    files = {
        "dynamic": dynamic,
        "openvino": CACHE / f"{name}_openvino_model",
        "openvino_int8": CACHE / f"{name}_int8_openvino_model",
    }
    theirs: list[str | Path] = [python, "-m", "benchmarks.peers.openvino_folders", dynamic, "--out", CACHE]
    ours: list[str | Path] = []
    if not trained:
        files |= {"static": model(name, dynamic=False), "int8": CACHE / f"{name}-int8.onnx"}
        theirs.append("--int8")
        ours = [our_python, "-m", "framefuse", "build", dynamic, "--precision", "int8", "--calib", clip("calibration"),
                "--out", files["int8"], "--allow-loss", "--exist-ok"]  # fmt: skip
    elif f"{name}-int8" in SHIPPED:
        files["int8"] = find_model(f"{name}-int8")
    for command, wanted in ((theirs, kinds & {"openvino", "openvino_int8"}), (ours, kinds & {"int8"})):
        made = [files[kind] for kind in wanted]
        if command and any(not path.exists() or path.stat().st_mtime < dynamic.stat().st_mtime for path in made):
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    return {kind: files[kind] for kind in kinds if kind in files}


def run_peer(name: str, python: Path, video: Path, weights: Path, frames: int) -> Report:
    """One run in a process of its own: its report, or `{"error": ...}` with the last line it wrote."""
    command = [python, "-m", "benchmarks.peers.run", name, "--clip", video, "--model", weights, "--frames", str(frames)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {TIMEOUT_SECONDS} s"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode or not lines:
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    report: Report = json.loads(lines[-1])
    return report


@contextmanager
def busy_neighbour(wanted: bool) -> Iterator[None]:
    """Keeps one core busy with another process, if wanted."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summarise(runs: dict[str, list[Report]], baseline: str) -> Report:
    """Medians and ratios of every peer; a peer that failed once is reported as failed, without figures."""
    rows: dict[str, Report] = {}
    for name, reports in runs.items():
        errors = [report["error"] for report in reports if "error" in report]
        if errors:
            rows[name] = {"error": errors[0]}
            continue
        rows[name] = {figure: median(report[figure] for report in reports) for figure in FIGURES}
        rows[name]["fps_of_each_round"] = [report["fps"] for report in reports]
        rows[name]["packages"] = reports[0]["packages"]
    measured = {name: row["fps"] for name, row in rows.items() if "fps" in row}
    strongest = max((name for name in measured if not PEERS[name].ours), key=measured.__getitem__, default=None)
    for name in measured:
        for against, key in ((baseline, "times_baseline"), (strongest, "times_strongest")):
            if against in measured:
                # Round by round, because what disturbs a round disturbs both of its runs.
                pairs = zip(runs[name], runs[against], strict=True)
                rows[name][key] = round(median(ours["fps"] / theirs["fps"] for ours, theirs in pairs), 3)
    return {"baseline": baseline, "strongest_competitor": strongest, "peers": rows}


def accuracy(weights: Path, precision: str, frames: int) -> float | None:
    """mAP50-95 of a trained model on frames of the clip that is timed, spread over it; None where it cannot run."""
    from framefuse.errors import CapabilityError
    from framefuse.lab.evaluation import validate

    video, truth = street()
    try:
        return validate(weights, truth, images=video, limit=frames, engine="openvino", precision=precision).value
    except CapabilityError as error:
        print(f"{weights.stem} {precision}: {error}", file=sys.stderr)
        return None


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--frames", type=int, default=150, help=f"measured frames of a run, at most {FRAMES - WARMUP}")
    parser.add_argument("--clip", choices=CLIPS, default="1080p")
    parser.add_argument("--model", choices=("yolov8n", *TRAINED), default="yolov8n")
    parser.add_argument("--save", action="store_true", help="compare the rows that write an annotated video")
    parser.add_argument("--neighbour", action="store_true", help="keep one other process busy meanwhile")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="only these rows")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"), help="see peers/env.sh")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the interpreter that has framefuse")
    parser.add_argument("--name", help="of the record; default: end_to_end with the options that were set")
    options = parser.parse_args()
    if not 0 < options.frames <= FRAMES - WARMUP:
        parser.error(f"--frames must be in 1..{FRAMES - WARMUP}: the clip has {FRAMES} frames, {WARMUP} warm up")
    return options


def main() -> None:
    """Runs the rounds, saves the record and prints table and JSON."""
    options = arguments()
    trained = options.model in TRAINED
    of = "trained" if trained else "save" if options.save else "usual"
    names = options.peers or [name for name, peer in PEERS.items() if peer.of == of]
    # An absolute path, but not resolved: a virtual environment's interpreter is a link, and finds itself by its name.
    peers_python, our_python = Path(os.path.abspath(options.peers_python)), Path(os.path.abspath(options.python))
    video = street()[0] if trained else clip(options.clip)
    files = model_files(options.model, {PEERS[name].model for name in names}, peers_python, our_python)
    names = [name for name in names if PEERS[name].model in files]
    runs: dict[str, list[Report]] = {name: [] for name in names}
    order = random.Random(0)
    with busy_neighbour(options.neighbour):
        for number in range(1, options.rounds + 1):
            order.shuffle(names)
            for name in names:
                python = our_python if PEERS[name].ours else peers_python
                report = run_peer(name, python, video, files[PEERS[name].model], options.frames)
                runs[name].append(report)
                result = report.get("error") or f"{report['fps']} fps"
                print(f"round {number}/{options.rounds} {name}: {result}", file=sys.stderr)
    summary = summarise(runs, BASELINES[of])
    if trained:
        for name, row in summary["peers"].items():
            if PEERS[name].ours and "error" not in row:
                precision = name.removeprefix("trained_")
                row["map50_95"] = accuracy(files[PEERS[name].model], precision, options.frames)
    settings = {key: getattr(options, key) for key in ("clip", "model", "rounds", "frames", "save", "neighbour")}
    settings["clip"] = STREET if trained else options.clip
    calibration = (
        "frames of the synthetic validation split" if trained else "another clip of the same kind; --allow-loss"
    )
    suffix = [options.model] if trained else [options.clip] if options.clip != "1080p" else []
    suffix += [word for word in ("save", "neighbour") if getattr(options, word)]
    for name, row in summary["peers"].items():
        print(name, {key: value for key, value in row.items() if key != "packages"})
    groups = [*GROUPS, *(["sink"] if options.save else []), *(["model", "evaluation"] if trained else [])]
    save(options.name or "_".join(["end_to_end", *suffix]).replace("-", "_"),
         {"settings": settings, "int8_calibration": calibration, **summary}, *groups)  # fmt: skip


if __name__ == "__main__":
    main()
