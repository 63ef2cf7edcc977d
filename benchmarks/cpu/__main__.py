"""Every record of the CPU, one after the other: 25 minutes on two idle cores.

    python -m benchmarks.cpu [--peers-python .venv-peers/bin/python] [--only WORD ...] [--quick] [--dry]

Begin with benchmarks/peers/env.sh, which makes the environment of the peers. A benchmark that fails does not stop the
next; the exit code is that of the worst. `--quick` does the least of everything, to see that all of it runs; its
numbers mean nothing: `git checkout benchmarks/records` afterwards.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

END_TO_END = ["cpu.end_to_end", "--rounds"]
FEW = [
    "--peers",
    "ultralytics_onnx",
    "ultralytics_openvino",
    "ultralytics_openvino_int8",
    "framefuse",
    "framefuse_int8",
]
SET = {
    "end_to_end": [*END_TO_END, "4"],
    "end_to_end_scout_n": [*END_TO_END, "3", "--model", "scout-n"],
    "end_to_end_save": [*END_TO_END, "3", "--save", "--frames", "100"],
    "end_to_end_neighbour": [*END_TO_END, "3", "--neighbour", "--frames", "100", *FEW],
    "end_to_end_768": [*END_TO_END, "3", "--clip", "768", "--frames", "100", *FEW],
    "end_to_end_1078": [*END_TO_END, "3", "--clip", "1078", "--frames", "100", *FEW],
    "kernels_cpu": ["kernels", "cpu"],
    "accuracy": ["cpu.accuracy"],
    "engines_cpu": ["engines", "--device", "cpu", "--engines", "openvino", "onnxruntime", "torch", "null"],
    "synthetic": ["cpu.synthetic"],
}
QUICK = {
    "cpu.end_to_end": ["--rounds", "1", "--frames", "5"],
    "kernels": ["--runs", "2", "--warmups", "1"],
    "cpu.accuracy": ["--seeds", "2", "--frames", "2"],
    "engines": ["--runs", "2", "--warmups", "1"],
    "cpu.synthetic": ["--frames", "2", "--no-baseline"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default=".venv-peers/bin/python")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="records with one of these in their name")
    parser.add_argument("--quick", action="store_true", help="the least of everything")
    parser.add_argument("--dry", action="store_true", help="only say what would run")
    options = parser.parse_args()
    failed, begun = 0, time.monotonic()
    for name, (module, *arguments) in SET.items():
        if options.only and not any(word in name for word in options.only):
            continue
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
        if module == "cpu.end_to_end":
            command += ["--peers-python", options.peers_python]
        command += QUICK[module] if options.quick else []
        print(f"== {name}: {' '.join(command[1:])}", flush=True)
        if not options.dry:
            code = subprocess.run(command, check=False).returncode
            failed = max(failed, abs(code))
            print(f"== {name}: exit {code}, {time.monotonic() - begun:.0f} s since the start", flush=True)
    print("now: python -m benchmarks.results", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
