"""What the GIL costs a Pipeline that reads many files on a GPU, found by taking changes back.

    python -m benchmarks.interpreter_lock CLIP.mp4 --model yolov8n.onnx [--streams 14] [--out RESULT.json]

Each row is `detect` of benchmarks.gpu_files in a process of its own, with `lock_wait_us`: how long a thread waits for
the lock after a call that gave it up and never blocks. Variants:

- `now`: as it is
- `driver`: copies on the GPU, records of events and waits for them give up the lock, as CuPy's calls do
- `filter`: FFmpeg's filter puts in the start codes; it gives up the lock three times a packet
- `both`
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIANTS = {"now": (), "driver": ("driver",), "filter": ("filter",), "both": ("driver", "filter")}


class LockWaits:
    """How long a thread waits for the GIL after a call that gave it up and never blocks: reading a
    packet of a file that lies in memory. What is not processor time of the thread is waiting."""

    def __init__(self) -> None:
        self.calls, self.waited = 0, 0.0

    def install(self) -> None:
        """Measure every packet that sources read from now on."""
        from framefuse.sources import files

        opened, waits = files.open_container, self

        class Container:
            def __init__(self, path: Path, *limits: int) -> None:
                self._container = opened(path, *limits)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._container, name)

            def demux(self, stream: Any) -> Any:
                packets = self._container.demux(stream)
                while True:
                    cpu, started = time.thread_time(), time.perf_counter()
                    packet = next(packets, None)
                    wall = time.perf_counter() - started
                    waits.calls, waits.waited = waits.calls + 1, waits.waited + wall - (time.thread_time() - cpu)
                    if packet is None:
                        return
                    yield packet

        files.open_container = Container

    def facts(self) -> dict[str, Any]:
        return {"lock_wait_us": round(self.waited / max(1, self.calls) * 1e6, 1)}


def undo(changes: tuple[str, ...]) -> None:
    """Take changes back in this process."""
    if "driver" in changes:
        from framefuse.cuda import driver as cuda_queue

        keeping, ctypes.PyDLL = ctypes.PyDLL, ctypes.CDLL  # type: ignore[misc, assignment]
        cuda_queue._library()
        ctypes.PyDLL = keeping  # type: ignore[misc]
    if "filter" in changes:
        import av

        from framefuse.sources import nvdec

        class Filter:
            def __init__(self, stream: Any) -> None:
                self._filter = av.BitStreamFilterContext("h264_mp4toannexb", stream)

            def __call__(self, packet: Any) -> bytearray:
                return bytearray(self._filter.filter(packet)[0])

        made = nvdec.NvDecoder.__init__

        def make(self: Any, module: Any, stream: Any, *arguments: Any, **options: Any) -> None:
            made(self, module, stream, *arguments, **options)
            self._annexb = Filter(stream)

        nvdec.NvDecoder.__init__ = make  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=60, help="a row may take so long")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.variant:
        from benchmarks.gpu_files import detect_row

        undo(VARIANTS[args.variant])
        print(json.dumps(detect_row(args.clip, args.model, args.streams, 8, {})))
        return
    rows = []
    for variant in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.interpreter_lock", *sys.argv[1:], "--variant", variant]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=args.seconds, env=dict(os.environ))
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        rows.append(
            {"variant": variant, **{name: found.get(name) for name in ("fps", "lock_wait_us", "cpu_us_a_frame")}}
        )
        print(rows[-1], flush=True)
    if args.out:
        args.out.write_text(
            json.dumps({"benchmark": "interpreter_lock", "streams": args.streams, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
