"""The attack on framefuse: damaged inputs of every kind, killed and signalled runs, and storms of live streams.

    python -m benchmarks.hardening [--fuzz 400] [--kills 80] [--signals 100] [--seconds 600] [--reconnects 1000]

Runs tests/fuzz/fuzz.py, tests/faults/endings.py and tests/faults/chaos.py, and records what they did and found. It
takes about half an hour on two cores. Its figures are counts, not times, so the machine need not be idle, except that
the ages of live results grow with its load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import protocol

GROUPS = ("program", "pipeline", "sink", "engine openvino", "engine onnxruntime", "synthetic world")


def run(script: str, *words: object) -> dict[str, Any]:
    """The record of a script of tests/; it ends with 1 if it found anything, which its record says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record.json")
        command = [sys.executable, protocol.ROOT / "tests" / script, *words, "--record", path]
        print(*command, file=sys.stderr, flush=True)
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=False)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=float, default=400, metavar="SECONDS", help="shared by all kinds of input")
    parser.add_argument("--kills", type=int, default=80)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600, help="of the storm")
    parser.add_argument("--reconnects", type=int, default=1000)
    options = parser.parse_args()
    live = ("--streams", options.streams, "--seconds", options.seconds, "--reconnects", options.reconnects)
    payload = {
        "fuzz": run("fuzz/fuzz.py", "--seconds", options.fuzz),
        "endings": run("faults/endings.py", "--kills", options.kills, "--signals", options.signals),
        "live": run("faults/chaos.py", *live),
    }
    protocol.save("hardening", payload, *GROUPS)


if __name__ == "__main__":
    main()
