"""Run by test_failing_files.py under failing_files.c: an output, with its n-th file operation failing, for all n.

    python every_call.py NAME FOLDER      NAME: a sink, "report" or "cache"

Prints a line for each finding, and last a JSON object: how many cases ran, and which calls failed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from framefuse.engines.cache import EngineCache
from framefuse.errors import SinkError
from framefuse.report.report import Report, build_report
from framefuse.sinks import open_sink
from framefuse.sinks.parquet import read_boxes
from framefuse.sinks.repair import repair_folder
from measured import measurements
from reading import decoded
from sink_frames import context, frame, result

FRAMES = 12
SECOND = 25
"""Frames of a second, which a video may lose."""
LIB = ctypes.CDLL(None)
LIB.fault_last.restype = ctypes.c_char_p
KEY = {name: "x" for name in ("model", "engine", "version", "device", "precision", "shapes", "flags")}
Outcome = tuple[int, Exception | None]
"""How many writes succeeded, and what was raised first."""


def write_sink(name: str, folder: Path) -> Outcome:
    sink, done, raised = open_sink(name), 0, None
    try:
        sink.open(context(folder))
        for index in range(FRAMES):
            one = frame(index, 64, 48, seed=index)
            sink.write(result(one), one)
            done += 1
    except Exception as error:
        raised = error
    try:
        sink.close()
    except Exception as error:
        raised = raised or error
    return done, raised


def check_sink(name: str, folder: Path, done: int, complete: bool) -> str:
    """What is wrong with an output of which `done` frames were said to be written; "": nothing."""
    if not complete or name == "video":  # a video that cannot be renamed is noted, not raised
        list(repair_folder(folder))
    if name == "video":
        path = folder / "clip.mp4"
        found = len(decoded(path)) if path.exists() and path.stat().st_size else 0
        return "" if (found == done if complete else found >= done - SECOND) else f"{found} frames of {done}"
    if name in ("images", "yolo_txt"):
        names = [f"clip_{index}.png" if name == "images" else f"labels/clip_{index}.txt" for index in range(done)]
        gone = [one for one in names if not (folder / one).exists() or not (folder / one).stat().st_size]
        return f"without {gone}" if gone else ""
    if not done and not list(folder.iterdir()):
        return ""
    if name == "coco":
        path = folder / "clip.json"
        found = len(json.loads(path.read_text())["images"]) if path.exists() else 0
    elif name == "parquet":
        path = folder / "clip.parquet"
        found = len(read_boxes(path)) if path.exists() else 0
        return "" if found == done or not complete else f"{found} frames of {done}"  # the others waited in memory
    elif name == "label_studio":
        path = folder / "clip.label_studio.json"
        found = len(json.loads(path.read_text())) if path.exists() else 0
    elif name == "cvat":
        path = folder / "clip.cvat.xml"
        found = len(ElementTree.parse(path).getroot().findall("image")) if path.exists() else 0
    else:
        lines = (folder / f"clip.{name}").read_text().split("\n") if (folder / f"clip.{name}").exists() else [""]
        if lines.pop():
            return "the last line has no end"
        found = len(lines) - (name == "csv" and bool(lines))
    return "" if found >= done else f"{found} frames of {done}"


def write_report(_: str, folder: Path) -> Outcome:
    try:
        build_report(measurements()).save(folder)
    except Exception as error:
        return 0, error
    return 1, None


def check_report(_: str, folder: Path, done: int, complete: bool) -> str:
    if not done:
        return ""
    Report.from_json((folder / "report.json").read_text())
    return "" if (folder / "report.html").read_text().endswith("</html>\n") else "the page is not complete"


def write_cache(_: str, folder: Path) -> Outcome:
    try:
        EngineCache("x", folder).get(KEY, lambda path: path.write_bytes(b"artifact") and None, suffix=".bin")
    except Exception as error:
        return 0, error
    return 1, None


def check_cache(_: str, folder: Path, done: int, complete: bool) -> str:
    found = EngineCache("x", folder).get(KEY, lambda path: path.write_bytes(b"artifact") and None, suffix=".bin")
    if found.path.read_bytes() != b"artifact":
        return "the artifact is another one"
    return "it was built again" if done and found.built else ""


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    write: Callable[[str, Path], Outcome] = {"report": write_report, "cache": write_cache}.get(name, write_sink)
    check = {"report": check_report, "cache": check_cache}.get(name, check_sink)
    allowed = (SinkError, OSError) if name == "cache" else SinkError
    failed: Counter[str] = Counter()
    number = 0
    while True:
        number += 1
        for code, lasting in ((errno.EIO, 0), (errno.EIO, 1), (errno.ENOSPC, 0), (errno.ENOSPC, 1)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            LIB.fault_arm(number, code, lasting)
            done, raised = write(name, folder)
            call = LIB.fault_last().decode()
            LIB.fault_arm(0, 0, 0)
            case = f"{name}, call {number} ({call}), {errno.errorcode[code]}{' from then on' * lasting}"
            failed[call] += 1
            if raised is not None and not isinstance(raised, allowed):
                print(f"{case}: {type(raised).__name__}: {raised}")
            try:
                wrong = check(name, folder, done, raised is None)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                print(f"{case}: {wrong}; raised: {raised!r}")
        if not call:
            break
    del failed[""]
    print(json.dumps({"cases": sum(failed.values()), "calls": failed}))


main()
