"""Whether an engine computes what the model says: its outputs on two frames, against FP32 on the CPU.

`OutputCheck` asks a process for the `Verdict` on a `Subject`, once for each key, while the run goes on. How it is made:
`output_distance.py`.
"""

import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Self

from framefuse.common.machine import python_path
from framefuse.common.version import __version__
from framefuse.cuda import device as gpus
from framefuse.engines import Engine, EngineOptions, find_backend, open_engine
from framefuse.engines.backend import version_of
from framefuse.engines.cache import EngineCache, model_hash
from framefuse.models.card import Card
from framefuse.models.onnx_file import is_quantised
from framefuse.models.openvino_file import SUFFIXES
from framefuse.runtime.channel import JOIN_SECONDS
from framefuse.runtime.choices import processor

_logger = logging.getLogger(__name__)
FRAMES = 2
SOURCE = "synthetic://street?seed=7&frames=900&size=1280x720"
"""The frames are those of its start and of its end: people, cars and edges of all sizes, the same everywhere."""
NO_REFERENCE = "no other engine is installed that computes this model in fp32 on the CPU (onnxruntime or openvino)"
REFERENCES = "onnxruntime", "openvino"
"""Engines whose FP32 on the CPU may be the reference, the better one first."""
LIMITS = {"fp32": 2**-12, "tf32": 2**-5, "fp16": 2**-5, "bf16": 2**-2, "int8": 2**-2, "fp8": 2**-2}
"""Precision -> largest relative distance that rounding explains.

A number of p significant bits is off by at most u = 2^-p: 2^-24 in fp32, 2^-11 in fp16 and tf32, 2^-8 in bf16. Rounding
grows with the depth of a network, and most where weights are random: the outputs of random detectors of the depth of
YOLOv8n are up to 50 u off (0.19 in bf16, 0.024 in fp16), those of the trained ones in this package 1 to 3 u. The limit
is 64 u. In fp32, where sums in another order and an approximate exp count for more, 270 u were seen; 2^-12 is 15 times
that, and less than tf32 makes of a trained detector. With 8 bits it is the choice of ranges that counts, not u: 0.02 in
a trained detector, with the limit of bf16. For comparison: zeros are 1 off, unrelated numbers 1.4."""
DELAY = 3.0
"""Seconds from the first result to the start of the process, so that a short run starts none."""
SETTLED = 120.0
"""Seconds that it waits at most until the engine has measured its kernels."""
GPU_BYTES = 2 << 30
"""GPU memory that has to be free for the process."""
FOLDER, SUFFIX = "checks", ".verdict"
MODULE = "framefuse.runtime.output_distance"


@dataclass(frozen=True)
class Subject:
    """What is checked."""

    card: Card
    engine: str
    options: EngineOptions
    """With which the engine was opened."""
    precision: str
    """What it runs in."""
    batch: int
    height: int
    width: int
    gpu: int | None = None
    """Number of the GPU; None on the CPU."""

    @property
    def reference(self) -> str | None:
        """The engine to compare with; None: there is none here that is another than the one that is checked."""
        path = self.card.path
        for name in REFERENCES:
            same = name == self.engine and self.options.device == "cpu" and self.precision in ("fp32", "int8")
            if name == "openvino":  # which runs quantised files with roundings of its own
                able = path.suffix in SUFFIXES or not is_quantised(path)
            else:
                able = path.suffix not in SUFFIXES
            if able and not same and find_backend(name).missing("cpu") is None:
                return name
        return None

    def open(self) -> Engine:
        """The engine, on one core if it runs on the CPU."""
        options = replace(self.options, streams=1, threads=1) if self.options.device == "cpu" else self.options
        return open_engine(self.engine, self.card.path, options)

    def key(self, reference: str) -> dict[str, str]:
        """Everything that decides about the verdict, for the cache."""
        backend, device = find_backend(reference), self.options.device
        # The package of ONNX Runtime has another name where it also runs on GPUs.
        compared = f"{reference} ({backend.versions('cpu')}; {backend.versions('cuda')})"
        libraries = {}
        if device == "cuda":
            driver = gpus.cupy().cuda.runtime.driverGetVersion()
            libraries = {"driver": str(driver), "cudnn": version_of("nvidia-cudnn-cu13") or ""}
        frames = hashlib.sha256(b"".join(frame.tobytes() for frame in self.options.calibration)).hexdigest()[:16]
        return libraries | {
            "model": model_hash(self.card.path),
            "engine": self.engine,
            "version": f"framefuse {__version__}, {find_backend(self.engine).versions(device)}",
            "device": processor(device),
            "precision": self.precision,
            "shapes": f"{self.batch}x3x{self.height}x{self.width}",
            "flags": f"layout {self.options.layout}, calibrated on {frames}, {compared}, {FRAMES} frames of {SOURCE}",
        }


@dataclass(frozen=True)
class Verdict:
    """How far the outputs of an engine are from those of the reference."""

    engine: str
    """What was checked, in words."""
    reference: str
    distances: Mapping[str, float] = field(default_factory=dict)
    """Part of the outputs -> root mean square of the difference, divided by that of the reference. Infinite where a
    number is not finite or the shapes differ."""
    limit: float = 0.0
    """The largest distance that rounding explains."""
    failed: str = ""
    """Why the reference cannot run the model; empty if it did."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The inverse of `dataclasses.asdict`, from a file of JSON."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def differs(self) -> bool:
        return not all(distance <= self.limit for distance in self.distances.values())

    def __str__(self) -> str:
        if self.failed:
            return f"outputs: not compared, because {self.reference} {self.failed}"
        listed = ", ".join(f"{name} {distance:.2g}" for name, distance in self.distances.items())
        return (
            f"outputs: {self.engine} against {self.reference} on {FRAMES} frames: {listed} (at most {self.limit:.2g})"
        )

    @property
    def warning(self) -> str:
        """For those who read no report; empty if nothing is wrong."""
        if not self.differs:
            return ""
        worst = max(self.distances, key=lambda name: self.distances[name])
        return (
            f"{self.engine} differs from {self.reference} on {FRAMES} frames: relative distance of {worst} "
            f"{self.distances[worst]:.2g}, where rounding explains {self.limit:.2g}; compare the results with those of "
            "another --engine or --precision"
        )


def limit_of(precision: str) -> float:
    """The limit of a precision as `Engine.precision` names it, such as "fp16+int8"; of an unknown one the largest."""
    return max(LIMITS.get(name, max(LIMITS.values())) for name in precision.split("+"))


class OutputCheck:
    """Has the outputs of a run's engine checked beside the run, once for each `Subject.key`.

    A daemon thread looks for the verdict. If there is none, it starts a process of the lowest priority some seconds
    after the first result, and kills it if the run ends before; the next run tries again.

    Args:
        engine: of the run; only looked at.
        subject: all of it but precision and size, which the first result tells.

    Attributes:
        reasons: what is known, for the report.
        warnings: what is wrong, for the report.
    """

    def __init__(self, engine: Engine, subject: Subject) -> None:
        self.reasons: list[str] = []
        self.warnings: list[str] = []
        self._engine, self._subject = engine, subject
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, width: int, height: int) -> None:
        """There is a result of a model input of this size; only the first call counts."""
        if self._thread is None:
            self._subject = replace(self._subject, precision=self._engine.precision, height=height, width=width)
            self._thread = threading.Thread(target=self._run, name="ff-check", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop at once. Callable from any thread, repeatedly."""
        self._stopped.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._say(self._verdict())
        except Exception as error:  # the run goes on
            if not self._stopped.is_set():
                _logger.info("the outputs were not compared: %s", error)
                self.reasons.append(f"outputs: not compared: {error}")

    def _verdict(self) -> Verdict | str:
        """The verdict, or why there is none; empty: the run ends before."""
        subject = self._subject
        if (reference := subject.reference) is None:
            return NO_REFERENCE
        with gpus.current(subject.gpu, "check the outputs"):
            if known := EngineCache(FOLDER).find(subject.key(reference), suffix=SUFFIX):
                return Verdict.read(known.path)
            begun = monotonic()
            while not self._stopped.wait(DELAY):
                if self._engine.settled or monotonic() - begun > SETTLED:
                    break
            if not self._stopped.is_set() and subject.gpu is not None and (why := self._no_room()):
                return why
        with TemporaryDirectory() as scratch:  # of the process, which cannot tidy up when it is killed
            return self._asked(scratch)

    def _no_room(self) -> str:
        if not self._subject.options.helpers:
            return "it would take GPU memory beside the run's, which max_memory limits"
        return "" if gpus.memory()[0] >= GPU_BYTES else "too little GPU memory is free"

    def _asked(self, scratch: str) -> Verdict | str:
        with self._lock:
            if self._stopped.is_set():
                return ""
            # In a session of its own, it does not get the Ctrl-C that the run answers by killing it.
            self._process = subprocess.Popen([sys.executable, "-m", MODULE], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                             env={**os.environ, "PYTHONPATH": python_path(),
                                                  "TMPDIR": scratch})  # fmt: skip
        with self._process as process:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            answer, complaint = process.communicate(pickle.dumps(self._subject))
        if self._stopped.is_set():
            return ""
        if process.returncode:
            said = complaint.decode(errors="replace").strip().splitlines()
            return said[-1][:300] if said else f"the process ended with code {process.returncode}"
        return Verdict(**json.loads(answer))

    def _say(self, verdict: Verdict | str) -> None:
        if isinstance(verdict, Verdict):
            self.reasons.append(str(verdict))
            if verdict.warning:
                self.warnings.append(verdict.warning)
                _logger.warning("%s", verdict.warning)
        elif verdict:
            self.reasons.append(f"outputs: not compared: {verdict}")
