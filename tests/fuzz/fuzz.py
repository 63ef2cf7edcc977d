"""Damage inputs of every kind: each is used, or refused by a typed error, without another exception, crash or hang.

    python tests/fuzz/fuzz.py [TARGET ...] [--seconds 60] [--seed 0] [--out FOLDER] [--record FILE.json]

Cases run in a process of their own, which may die. An input with a finding is kept in --out; put it into
tests/fuzz/kept/TARGET/ with the mend, where the test suite tries it for ever.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]

CASE_SECONDS = 30
MEMORY = 12 << 30
"""Bytes of address space of the process with the cases."""
BATCH = 2000
"""Cases of a process at most."""


@dataclass
class Findings:
    cases: Counter[str] = field(default_factory=Counter)
    found: dict[str, str] = field(default_factory=dict)
    """What went wrong -> the file with the smallest such input."""


def work(name: str, seed: int, folder: Path, seconds: float) -> None:
    """Run cases, and print a line for each: the number, and what was found. The file of that number is the input."""
    from mutate import mutated
    from targets import TARGETS, try_one

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    target, end = TARGETS[name], time.monotonic() + seconds
    samples = target.samples()
    for number in range(seed, seed + BATCH):
        if time.monotonic() > end:
            break
        random = Random(f"{name} {number}")
        content = mutated(random.choice(samples), random)
        content = target.mend(content) if random.random() < 0.5 else content
        (folder / str(number)).write_bytes(content)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            print(number, json.dumps(try_one(target, content, Path(place))), flush=True)


def fuzz(name: str, seconds: float, seed: int, out: Path, findings: Findings) -> None:
    """Fuzz a target for so many seconds."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        while (left := end - time.monotonic()) > 0:
            command = [sys.executable, __file__, "--work", name, str(seed), scratch, str(left)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert process.stdout is not None
            watch = Watch(process)
            for line in process.stdout:
                number, _, found = line.partition(" ")
                watch.alive()
                if not number.isdigit():  # stdout is for results
                    keep(out, name, f"printed {line.strip()[:60]}", Path(scratch, str(seed)), findings)
                    continue
                seed = int(number) + 1
                findings.cases[name] += 1
                if what := json.loads(found):
                    keep(out, name, what, Path(scratch, number), findings)
                Path(scratch, number).unlink()
            process.stdout.close()
            code = process.wait()
            watch.stop()
            if code:
                what = f"no end within {CASE_SECONDS} s" if watch.ended else f"the process ended with {code}"
                keep(out, name, what, Path(scratch, str(seed)), findings)
                seed += 1


class Watch:
    """Kills a process whose case takes too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        import threading

        self.ended = False
        self._process, self._last, self._stopped = process, time.monotonic(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def alive(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(0.5):
            if time.monotonic() - self._last > CASE_SECONDS:
                self.ended = True
                self._process.kill()
                return


def keep(out: Path, name: str, what: str, case: Path, findings: Findings) -> None:
    """Keep the smallest input of each kind of finding: an exception at a place, whatever its message."""
    content, kind = case.read_bytes() if case.exists() else b"", what.partition(": ")[0]
    path = Path(findings.found.get(f"{name}: {kind}", out / f"{name}-{len(findings.found)}"))
    if path.exists() and path.stat().st_size <= len(content):
        return
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    findings.found[f"{name}: {kind}"] = str(path)
    print(f"{name}: {what} ({path})", file=sys.stderr)


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        name, seed, folder, seconds = sys.argv[2:]
        work(name, int(seed), Path(folder), float(seconds))
        return 0
    from targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    findings = Findings()
    for name in options.targets:
        fuzz(name, options.seconds / len(options.targets), options.seed, options.out, findings)
    facts = {"seconds": options.seconds, "cases": dict(findings.cases), "findings": findings.found}
    print(json.dumps(facts, indent=1))
    if options.record:
        options.record.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if findings.found else 0


if __name__ == "__main__":
    sys.exit(main())
