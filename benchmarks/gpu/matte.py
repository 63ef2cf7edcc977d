"""Mattes of VR video on a GPU: 3840x1920, both eyes side by side, body-n, from surfaces (NV12) to planes in memory.

    python -m benchmarks.gpu.matte [--parts alone paced encoded stream file steps] [--modes gray green]

- `alone`: one frame at a time, from the surface that the source hands over to the composed planes on the host; a live
  source, so that no frame waits for those after it. In a run of its own, because it waits there: to these planes in the
  memory of the GPU
- `paced`: the same at 60 and 90 frames/s: median and p99, and the frames that were dropped
- `encoded`: at 60 frames/s with `--preset vr`, until x264 (ultrafast) has given the frame back
- `stream`: as many frames as the pipeline takes, of a source whose frames wait for the four after them
- `file`: frames/s from an H.264 file of two minutes with a key frame a second, in turns with the loop that is written
  first: PyAV to BGR in memory, each eye through OpenCV's resize, the model in PyTorch in half precision, softmax,
  arg-max, OpenCV's opening and closing, blur and stretch, and the composition in NumPy. Both end with planes in memory;
  nothing is encoded
- `steps`: each step after the model, beside the same step in operators of PyTorch: device time of both as captured
  graphs, whose data may lie in the second-level cache

The record is matte_gpu, written after each part. Parts that are not asked for stay as they are in it, with the commit
at which each was measured. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import av
import numpy as np

from benchmarks.clips import CACHE, long_clip
from benchmarks.protocol import RECORDS, Stats, commit, read, save
from framefuse import Pipeline
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels.masks.canvas import Canvas
from framefuse.kernels.masks.grids import TOGETHER
from framefuse.models import find_model
from framefuse.sinks.matte import MatteSink
from framefuse.sources import SourceInfo
from framefuse.sources.source import Frames, PullSource
from framefuse.world import World

SIZE, EYE = (3840, 1920), 1920
MODEL, RECORD, SURFACES, WARM = "body-n", "matte_gpu", 16, 40
RUNS, SECONDS, FILE_FRAMES, TIMES = 400, 6, 1200, 6
PEER_SECONDS = 5
"""For which the loop is measured: it is as fast in the middle of the file as at its end."""
RATES = 60, 90
TICKS = Fraction(1, 90_000)
GROUPS = (
    *("model", "CUDA kernel", "engine cudnn", "engine torch", "program", "CUDA program", "pipeline", "views", "sink"),
    *("matting", "synthetic world"),
)


def images(count: int = SURFACES) -> Iterator[Any]:
    """RGB pictures of people who move, each pixel of the synthetic world four times."""
    world = World(scene="bodies", seed=9101, split="test", frames=3 * count, size=(SIZE[0] // 2, SIZE[1] // 2),
                  stereo="sbs")  # fmt: skip
    for index in range(count, 2 * count):
        yield world[index].image.repeat(2, 0).repeat(2, 1)


def surfaces() -> list[Frame]:
    """The pictures as NV12 on the GPU."""
    cp, made = device.cupy(), []
    for index, image in enumerate(images()):
        data = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="nv12").to_ndarray()
        planes = data[: SIZE[1]], data[SIZE[1] :].reshape(SIZE[1] // 2, SIZE[0] // 2, 2)
        there = tuple(cp.asarray(np.ascontiguousarray(plane)) for plane in planes)
        made.append(Frame(there, PIXEL_FORMATS["nv12"], index, time_base=TICKS))
    return made


class Watch:
    """When each frame left the source, and when its planes were in memory."""

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.drawn: dict[int, float] = {}
        """When the planes were in the memory of the GPU, if somebody waits for that."""
        self.shown = 0
        """The frame that is being composed."""
        self.turn = threading.Semaphore(1)

    def source(self, frames: list[Frame], count: int, kind: str, rate: float | None = None) -> PullSource:
        """Surfaces again and again.

        Args:
            kind: live, or file.
            rate: frames a second, after the first ones; None: the next frame comes when the one before is done, as the
                first ones do. 0: at once.
        """

        def shown(closed: threading.Event) -> Frames:
            due = time.perf_counter()
            for index, frame in enumerate(itertools.islice(itertools.cycle(frames), count)):
                if rate is None or (rate and index < WARM):
                    self.turn.acquire(timeout=60 if index < WARM else 5)
                    due = time.perf_counter()
                elif rate:
                    due += 1 / rate
                    time.sleep(max(0.0, due - time.perf_counter()))
                if closed.is_set():
                    return
                self.begun[index] = time.perf_counter()
                yield frame.replace_unchecked(index=index, pts=index * 1000, source_id="surfaces", arrival=None)

        return PullSource(SourceInfo("surfaces", kind, *SIZE, fps=Fraction(90), frames=count), shown)

    def finished(self, index: int) -> None:
        self.done[index] = time.perf_counter()
        self.turn.release()

    def wait(self) -> None:
        """Wait until the planes are drawn."""
        device.synchronize()
        self.drawn[self.shown] = time.perf_counter()

    def milliseconds(self, done: dict[int, float] | None = None) -> list[float]:
        """From surface to planes, without the first frames, which wait for the capture of graphs."""
        done = self.done if done is None else done
        return [1e3 * (done[index] - begun) for index, begun in self.begun.items() if index >= WARM and index in done]


def piped(source: Any, watch: Watch, mode: str, *, encodes: bool = False, waits: bool = False, **options: Any) -> Any:
    """The report of a run of `framefuse matte` that keeps planes in memory, unless it encodes them.

    Args:
        waits: until the planes are drawn, before they are copied to the host.
    """
    write, compose, start = MatteSink.write, MatteSink._compose_on_gpu, Canvas.start

    def written(sink: MatteSink, result: Any, frame: Any) -> None:
        if encodes:
            write(sink, result, frame)
        else:
            sink._downloaded(frame, result)
        watch.finished(result.frame.index)

    def composing(sink: MatteSink, given: Any) -> Any:
        watch.shown = given[0][1].frame.index  # where it waits, they come one by one
        return compose(sink, given)

    def started(canvas: Canvas) -> None:
        if waits:
            watch.wait()
        start(canvas)

    with (
        mock.patch.object(MatteSink, "write", written),
        mock.patch.object(MatteSink, "_compose_on_gpu", composing),
        mock.patch.object(Canvas, "start", started),
        TemporaryDirectory() as folder,
    ):
        given: dict[str, Any] = {"device": "cuda", "stereo": "sbs", "encoder": "libx264", **options}
        return Pipeline(source, MODEL, save_matte=mode, project=Path(folder), **given).run()


def facts(report: Any) -> dict[str, Any]:
    """What a row says about its run."""
    copies = {f"{copy.stage} {copy.direction} {copy.kind}": copy.bytes_per_frame for copy in report.copies}
    stages = [dataclasses.asdict(stage) for stage in report.stages]
    engine = f"{report.model.engine} {report.model.precision}"
    return {"engine": engine, "bytes_a_frame": copies, "stages": stages, "verdict": report.verdict}


def alone(frames: list[Frame], mode: str) -> dict[str, Any]:
    watch, waiting = Watch(), Watch()
    report = piped(watch.source(frames, WARM + RUNS, "live"), watch, mode, max_age=60)
    piped(waiting.source(frames, WARM + RUNS, "live"), waiting, mode, waits=True, max_age=60)
    times = {"ms": Stats.of(watch.milliseconds()), "matte_ms": Stats.of(waiting.milliseconds(waiting.drawn))}
    return {"mode": mode, **times, **facts(report)}


def paced(frames: list[Frame], mode: str, rate: int, *, encodes: bool = False) -> dict[str, Any]:
    watch, count = Watch(), WARM + SECONDS * rate
    preset = {"preset": "vr"} if encodes else {}
    piped(watch.source(frames, count, "live", rate), watch, mode, encodes=encodes, max_age=60, **preset)
    kept = sum(index >= WARM for index in watch.done)
    return {"mode": mode, "rate": rate, "ms": Stats.of(watch.milliseconds()), "dropped": count - WARM - kept}


def stream(frames: list[Frame], mode: str) -> dict[str, Any]:
    watch, count = Watch(), WARM + 4 * RUNS
    report = piped(watch.source(frames, count, "file", 0), watch, mode)
    return {"mode": mode, "fps": steady_rate(watch), "frames": count, **facts(report)}


def steady_rate(watch: Watch) -> float:
    """Frames a second after the first ones."""
    times = [done for index, done in sorted(watch.done.items()) if index >= WARM]
    return (len(times) - 1) / (times[-1] - times[0])


def clip() -> Path:
    """The pictures as a video, made once, and joined to itself."""
    path = CACHE / f"matte-gpu-{World.version}-{FILE_FRAMES}-g60-{TIMES}.mp4"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shown, part = list(images()), path.with_suffix(".part.mp4")
        with av.open(str(part), "w") as container:
            output: Any = container.add_stream(
                "libx264", rate=60, options={"preset": "ultrafast", "crf": "23", "g": "60"}
            )
            output.width, output.height, output.pix_fmt = *SIZE, "yuv420p"
            there_and_back = itertools.cycle([*shown, *shown[-2:0:-1]])
            for image in itertools.islice(there_and_back, FILE_FRAMES):
                container.mux(output.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(output.encode(None))
        whole = long_clip(part, path.with_suffix(".whole.mp4"), TIMES)
        part.unlink()
        whole.rename(path)
    return path


def classic(path: Path, mode: str) -> float:
    """Frames a second of the loop that is written first."""
    import cv2
    import torch

    engine: Any = open_engine("torch", find_model(MODEL), EngineOptions("cuda", precision="fp16"))
    side = 384
    network, kernel = engine.network((2, 3, side, side)), np.ones((5, 5), np.uint8)
    times = []
    with torch.inference_mode(), av.open(str(path)) as source:
        source.streams.video[0].thread_type = "AUTO"
        for frame in source.decode(video=0):
            image = frame.to_ndarray(format="bgr24")
            small = [cv2.resize(eye, (side, side))[..., ::-1] for eye in (image[:, :EYE], image[:, EYE:])]
            given = torch.from_numpy(np.stack(small)).to("cuda").permute(0, 3, 1, 2).half() / 255
            shares = network(given.contiguous(memory_format=torch.channels_last))[0].float().softmax(1)
            masks = (shares.argmax(1) > 0).to(torch.uint8).mul(255).cpu().numpy()
            alphas = []
            for mask in masks:
                mask = cv2.morphologyEx(cv2.morphologyEx(mask, cv2.MORPH_OPEN, kernel), cv2.MORPH_CLOSE, kernel)
                alphas.append(cv2.resize(cv2.GaussianBlur(mask, (5, 5), 0), (EYE, EYE)))
            alpha = np.hstack(alphas)
            if mode != "gray":
                weight = alpha[..., None].astype(np.float32) / 255
                composed = (image * weight + np.array([0, 255, 0], np.float32) * (1 - weight)).astype(np.uint8)
                assert composed.shape == image.shape
            times.append(time.perf_counter())
            if len(times) > WARM + 20 and times[-1] - times[WARM] > PEER_SECONDS:
                break
    engine.close()
    return (len(times) - 1 - WARM) / (times[-1] - times[WARM])


def from_file(mode: str, rounds: int = 3) -> dict[str, Any]:
    """Ours and the classic loop in turns."""
    path, rates = clip(), {"framefuse": list[float](), "PyAV, OpenCV and PyTorch": list[float]()}
    noted = []
    for _ in range(rounds):
        watch = Watch()
        report = piped(path, watch, mode)
        noted = [note for source in report.sources for note in source.notes]
        rates["framefuse"].append(steady_rate(watch))
        rates["PyAV, OpenCV and PyTorch"].append(classic(path, mode))
    ratio = median(one / other for one, other in zip(*rates.values(), strict=True))
    return {"mode": mode, "fps": {who: median(runs) for who, runs in rates.items()}, "runs": rates, "ratio": ratio,
            "notes": noted}  # fmt: skip


def tuned() -> tuple[int, ...]:
    """The shape of the scores of both eyes. The engine has measured its kernels then, for one eye, for both, and for
    those of a file, of which several frames run together: later runs find them, and measure none beside their work."""
    engine: Any = open_engine("cudnn", find_model(MODEL), EngineOptions("cuda"))
    shapes = {rows: tuple(engine.execution(rows, 384, 384).results[0].shape) for rows in (1, 2, 2 * TOGETHER)}
    engine.close()
    return shapes[2]


def steps(frames: list[Frame]) -> list[dict[str, Any]]:
    """Device time of each step for both eyes of a frame."""
    import cupy as cp
    import torch
    from torch.nn import functional

    from benchmarks.kernels.gpu_timing import Gpu
    from benchmarks.kernels.rows import OURS, Row
    from framefuse.kernels.masks import mattes
    from framefuse.kernels.masks.canvas import Layers, compose, guides_of
    from framefuse.kernels.masks.grids import Grid, new_samples
    from framefuse.kernels.masks.guided import RADIUS, SMALLEST_VARIANCE

    def torched(array: Any) -> Any:
        return torch.as_tensor(array, device="cuda")

    _, classes, rows, columns = shape = tuned()
    random, gpu, found = np.random.default_rng(0), Gpu(100, 20), []
    grids = [Grid((left, 0, EYE, EYE), (rows, columns)) for left in (0, EYE)]

    def samples(low: float = 0, high: float = 1) -> list[Any]:
        """Of both eyes, one after the other."""
        made = new_samples(grids)
        for part in made:
            part[...] = cp.asarray(random.uniform(low, high, part.shape).astype(np.float32))
        return made

    def both(parts: list[Any]) -> Any:
        return torch.stack([torched(part) for part in parts])[:, None]

    scores = cp.asarray(random.normal(0, 4, shape).astype(np.float32))
    moments = [mattes.Moment(samples(), samples()) for _ in range(9)]
    for before, after in itertools.pairwise(moments):
        mattes.compare(before, [after])
        after.change = cp.zeros((2, mattes.PARTS), np.float32)  # otherwise noise would be cuts
    share, (lows,) = mattes.DeviceShare(shape, range(1, classes)), guides_of(frames[:1], grids)
    luma, chroma = map(torched, frames[0].planes)
    t_scores, t_low, t_eyes = torched(scores), both(lows), luma.view(EYE, 2, EYE).permute(1, 0, 2)[:, None]
    t_alphas, t_guides = ([both(part) for part in parts]
                          for parts in zip(*((m.alphas, m.guides) for m in moments), strict=True))  # fmt: skip

    def steadied() -> Any:
        plain = [torch.maximum(torch.minimum(a, c), torch.minimum(torch.maximum(a, c), b))
                 for a, b, c in zip(t_alphas, t_alphas[1:], t_alphas[2:], strict=False)]  # fmt: skip
        total, weights, guide = plain[3], torch.ones_like(plain[3]), t_guides[4]
        for number in (0, 1, 2, 4, 5, 6):
            moved = functional.max_pool2d((t_guides[number + 1] - guide).abs(), 3, 1, 1)
            weight = (1 - moved / mattes.MOVES).clamp(0, 1)
            total, weights = total + weight * plain[number], weights + weight
        return total / weights

    def blurred(plane: Any) -> Any:
        return functional.avg_pool2d(functional.pad(plane, (RADIUS,) * 4, mode="replicate"), 2 * RADIUS + 1, 1)

    def stretched(plane: Any) -> Any:
        return functional.interpolate(plane, (EYE, EYE), mode="bilinear", align_corners=False)

    def guided() -> Any:
        alpha = t_alphas[0]
        a, b = blurred(alpha), blurred(t_low)
        slope = (blurred(alpha * t_low) - a * b) / ((blurred(t_low * t_low) - b * b).clamp(0) + SMALLEST_VARIANCE)
        level = stretched(blurred(a - slope * b - 0.5)) * (255 * 5) + 128
        eyes = (stretched(blurred(slope)) * 5 * t_eyes + level).clamp(0, 255).to(torch.uint8)
        return eyes[:, 0].permute(1, 0, 2).reshape(luma.shape)

    def mixed(over: Any, under: Any, alpha: Any) -> Any:
        return (over * alpha + under * (255 - alpha) + 127).div(255, rounding_mode="floor").to(torch.uint8)

    def before_green() -> Any:
        alpha = guided().int()
        coarse = (functional.avg_pool2d(alpha[None].float(), 2)[0] + 0.5).int()
        return [mixed(luma.int(), 90, alpha), *(mixed(chroma[..., part].int(), 90, coarse) for part in (0, 1))]

    views = [(grid, alpha, low) for grid, alpha, low in zip(grids, moments[0].alphas, lows, strict=True)]
    canvas, own = Canvas((SIZE[::-1], (EYE // 2, EYE), (EYE // 2, EYE))), (None, None, None)
    green, gray = Layers(own, (90, 90, 90)), Layers((235,), (16,))
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "shares of the scores": (partial(share, scores), lambda: t_scores.softmax(1)[:, 1:].sum(1)),
        "luma at the resolution of the matte": (
            partial(guides_of, frames[:1], grids),
            lambda: functional.adaptive_avg_pool2d(t_eyes.float(), (rows, columns)) / 255,
        ),
        "change of the luma": (
            partial(mattes.compare, moments[0], moments[1:2]), lambda: (t_guides[1] - t_guides[0]).abs().mean((1, 2, 3))
        ),
        "steadied over nine frames": (
            partial(mattes.steadied, moments, range(4, 5), weight=1.0, medians=True), steadied
        ),
        "guided and drawn as a gray matte, 3840x1920": (
            partial(compose, [(frames[0], views, canvas.planes[:1])], gray, 2.0), lambda: mixed(235, 16, guided().int())
        ),
        "guided and composed before green, 3840x1920": (
            partial(compose, [(frames[0], views, canvas.planes)], green, 2.0), before_green
        ),
    }  # fmt: skip
    for title, (ours, theirs) in pairs.items():
        row = Row(title, title)
        gpu.time(row, {OURS: [gpu.plan(ours)], "PyTorch": [theirs]})
        found.append({"step": title, "us": row.us, "how": row.how, "note": row.note})
    return [*found, {"grid": shape}]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ["alone", "paced", "encoded", "stream", "steps", "file"]
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument("--modes", nargs="+", default=["gray", "green"])
    options = parser.parse_args()
    frames = surfaces()
    tuned()
    parts: dict[str, Callable[[], Any]] = {
        "alone": lambda: [alone(frames, mode) for mode in options.modes],
        "paced": lambda: [paced(frames, mode, rate) for mode in options.modes for rate in RATES],
        "encoded": lambda: [paced(frames, mode, 60, encodes=True) for mode in options.modes],
        "stream": lambda: [stream(frames, mode) for mode in options.modes],
        "steps": lambda: steps(frames),
        "file": lambda: [from_file(mode) for mode in options.modes],
    }
    known = read(RECORD) if (RECORDS / f"{RECORD}.json").exists() and set(options.parts) < set(every) else {}
    kept = {part: known[part] for part in every if part in known}
    commits = known.get("commits") or dict.fromkeys(kept, known.get("commit"))
    result: dict[str, Any] = {"model": MODEL, "size": SIZE, "world": World.version, "commits": commits, **kept}
    for part in options.parts:
        result[part] = parts[part]()
        result["commits"][part], _ = commit()
        save(RECORD, result, *GROUPS)


if __name__ == "__main__":
    main()
