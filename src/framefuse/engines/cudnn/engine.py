"""Engine cudnn: a graph compiler over cuDNN's fused convolutions and our kernels, with one CUDA graph per batch."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.version import __version__
from framefuse.cuda import device
from framefuse.cuda.device import translate_cuda_error
from framefuse.engines import selftest
from framefuse.engines.backend import Backend
from framefuse.engines.cache import EngineCache, model_hash
from framefuse.engines.cudnn import BACKEND
from framefuse.engines.cudnn.autotune import MIN_AGREEMENT, PrecisionTuner, TuningResult
from framefuse.engines.cudnn.compiled import Compiled, check_wide, compile_network, forget
from framefuse.engines.cudnn.convolutions import CANDIDATES, OWN, Builder, Layer, frontend
from framefuse.engines.cudnn.execution import Execution, Weights
from framefuse.engines.cudnn.later import LaterTuning
from framefuse.engines.cudnn.network import LOW_PRECISIONS, Conv, Type
from framefuse.engines.cudnn.plans import Plans, environment
from framefuse.engines.engine import Device, Engine, EngineOptions
from framefuse.errors import CapabilityError, UsageError
from framefuse.models.onnx_file import is_quantised

STREAMS = 4
"""Steps that may run concurrently, such as the branches of a detection head."""
CACHE = "cudnn-precision"
"""Folder of tuning results in the cache."""
SUFFIX = ".choice"
NOISE_IMAGES = 8
"""Noise images to compare on, where the file states ranges and there are no calibration frames."""
SIDE_BY_SIDE = 8
"""Layers that are worth starting processes for."""
HOW: dict[Type, str] = {
    "fp16": "convolutions multiply float16 and add in float32",
    "fp32": "all numbers are float32, and no tensor cores multiply them",
    "tf32": "all numbers are float32; tensor cores round factors to the 10 bits of float16 after the point",
}
FP8_CAPABILITY, TF32_CAPABILITY = 89, 80
"""Lowest compute capability with FP8, and with TF32."""


class Precisions:
    """The requested precision, and the tuned precisions of each shape.

    Attributes:
        wide: of what is not 8-bit.
        precision: of the last network that was tuned, such as "fp16+int8"; `wide` before.
        layers: of that network, as `TuningResult.layers`.

    Raises:
        CapabilityError: FP8 or TF32 is requested on a GPU without it.
        UsageError: an 8-bit precision is requested without calibration frames, for a model that states no ranges.
    """

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self.requested = options.precision
        self.wide: Type = options.precision if options.precision in ("fp32", "tf32") else "fp16"
        self.precision: str = self.wide
        self.layers: list[dict[str, Any]] = []
        self._model, self._frames = model, options.calibration
        self._results: dict[tuple[int, int, int], TuningResult] = {}
        self.kinds: tuple[Type, ...] = ()
        quantised = is_quantised(model)
        if options.precision in LOW_PRECISIONS:
            self.kinds = (options.precision,)
            if not self._frames and not quantised:
                message = f"engine cudnn needs frames to choose what runs in {options.precision}"
                remedy = "add --calib SOURCE: a video, images or a camera that show what the model will see"
                raise UsageError(message, remedy=remedy)
        elif options.precision == "auto" and self._frames:
            self.kinds = LOW_PRECISIONS
        if self.wide == "tf32" and int(device.cupy().cuda.Device().compute_capability) < TF32_CAPABILITY:
            raise CapabilityError("this GPU has no TF32", remedy="use --precision fp32 or fp16")
        if "fp8" in self.kinds and int(device.cupy().cuda.Device().compute_capability) < FP8_CAPABILITY:
            if options.precision == "fp8":
                raise CapabilityError("this GPU has no FP8", remedy="use --precision fp16 or int8")
            self.kinds = ("int8",)
        if self.kinds:
            self.reason = f"precision {options.precision}: each layer in fp16 or {' or '.join(self.kinds)}, as measured"
        else:
            self.reason = f"precision {self.wide}: {HOW[self.wide]}"
            if options.precision == "auto":
                self.reason += "; 8 bits are tried if calibration frames are given"
            if quantised:
                self.reason += "; the Q/DQ nodes of the file are removed and its 8-bit weights dequantised"

    def apply(self, compiled: Compiled, plans: Plans, weights: Weights) -> tuple[Compiled, list[str]]:
        """The network with tuned types, and lines for the report.

        Raises:
            EngineError: a kernel cannot be built or run.
            OSError: the cache cannot be written.
        """
        if not self.kinds:
            return compiled, []
        shape = compiled.batch, compiled.height, compiled.width
        reasons = []
        if shape not in self._results:
            images = self._images(compiled.height, compiled.width)
            key = self._key(compiled, plans, images)

            def build(path: Path) -> None:
                try:
                    tuner = PrecisionTuner(compiled, plans, weights, images, compiled.network.ranges)
                    path.write_text(json.dumps(asdict(tuner.tune(self.kinds))))
                finally:
                    plans.stop_workers()
                    plans.save()

            cached = EngineCache(CACHE).get(key, build, suffix=SUFFIX)
            self._results[shape] = TuningResult.from_json(json.loads(cached.path.read_text()))
            reasons = [self._summary(self._results[shape], compiled), f"layer by layer: {cached.path}; {cached.reason}"]
        result = self._results[shape]
        self.precision, self.layers = result.precision, result.layers
        return result.applied(compiled), reasons

    def _summary(self, result: TuningResult, compiled: Compiled) -> str:
        counts = Counter(layer["multiplies"] for layer in result.layers)
        listed = ", ".join(f"{count} in {kind}" for kind, count in counts.most_common())
        where = f"{len(self._frames)} frames" if self._frames else "noise, since there are no frames"
        agrees = f"agrees with fp16 on {result.agreement:.1%} ({where}; at least {MIN_AGREEMENT:.0%})"
        return (
            f"batch {compiled.batch} of {compiled.width}x{compiled.height}, convolutions: {listed}; "
            f"{result.us['chosen']:.0f} us per batch, {result.us['tuned']:.0f} with all in fp16 and tuned kernels, "
            f"{result.us['fp16']:.0f} by default; {agrees}"
        ) + (f"; {result.note}" if result.note else "")

    def _images(self, height: int, width: int) -> NDArray[np.float16]:
        """Calibration images (n, 3, height, width); frames of another size are resized by nearest neighbour."""
        if not self._frames:
            return np.random.default_rng(0).random((NOISE_IMAGES, 3, height, width)).astype(np.float16)
        found = []
        for frame in self._frames:
            rows, columns = (np.arange(size) * have // size for size, have in zip((height, width), frame.shape[2:],
                                                                                 strict=True))  # fmt: skip
            found.append(frame[:1, :, rows][..., columns].astype(np.float16))
        return np.concatenate(found)

    def _key(self, compiled: Compiled, plans: Plans, images: NDArray[Any]) -> dict[str, str]:
        facts = environment(plans.builder)
        return facts | {
            "model": model_hash(self._model),
            "engine": "cudnn",
            "version": __version__,
            "device": facts["gpu"],
            "precision": self.requested,
            "shapes": f"{compiled.batch}x3x{compiled.height}x{compiled.width}",
            "flags": f"agreement {MIN_AGREEMENT}, images {hashlib.sha256(images.tobytes()).hexdigest()[:16]}",
        }


class CudnnEngine(Engine):
    """A model on the current GPU, in float16; layer by layer in 8 bits where that was asked for and is faster; or in
    float32, where fp32 or tf32 was asked for.

    Its precision is that of the last network made, such as "fp16+int8". If the caller states the layout "yolov8" and
    the model has that head, `execution` leaves the decoding of boxes to post-processing.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities
    device = "cuda"

    def __init__(self, model: Path, options: EngineOptions) -> None:
        options.refuse_threads(self.name)
        device.cupy()
        self._precisions = Precisions(model, options)
        self.precision, wide = self._precisions.precision, self._precisions.wide
        self.input_dtype = np.dtype(np.float16 if wide == "fp16" else np.float32)
        self._model, self._fold = model, options.layout == "yolov8" and wide == "fp16"
        self._builder = Builder(max_workspace=(options.workspace_mb or 64) << 20)
        self._plans = Plans(self._builder, later=options.tunes_later and not self._precisions.kinds)
        self._weights: Weights | None = None
        self._helpers = options.helpers
        self.reasons = [self._precisions.reason, f"{_version()}, autotuned kernels"]
        self._later = LaterTuning(self._plans, self.reasons)

    def _make_execution(self, batch: int, height: int, width: int) -> Execution:
        return self._executions(self._compiled(batch, height, width), 1, fold=self._fold)[0]

    def _make_host_executions(self, batch: int, height: int, width: int, count: int) -> list[Execution]:
        return self._executions(self._compiled(batch, height, width), count)

    def tune(self) -> None:
        if self._plans.unmeasured:
            self._later.tune()

    @property
    def settled(self) -> bool:
        return not self._later.running

    def close(self) -> None:
        self._later.close()
        self._weights = None
        forget()

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Of the last network that was tuned layer by layer, as `TuningResult.layers`."""
        return self._precisions.layers

    def _compiled(self, batch: int, height: int, width: int) -> Compiled:
        wide = self._precisions.wide
        compiled = replace(compile_network(self._model, batch, height, width, streams=STREAMS), wide=wide)
        check_wide(compiled.network, wide)
        if self._weights is None:  # the same for every batch and size
            convs = [step for step in compiled.placement.steps if isinstance(step, Conv)]
            self._weights = Weights(convs, self.input_dtype)
        compiled, reasons = self._precisions.apply(compiled, self._plans, self._weights)
        self.precision = self._precisions.precision
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        return compiled

    def _executions(self, compiled: Compiled, count: int, *, fold: bool = False) -> list[Execution]:
        started = time.perf_counter()
        plans = self._plans
        before = plans.measured, plans.cached, plans.rebuilt
        size = compiled.memory.size * compiled.itemsize * count
        try:
            assert self._weights is not None
            if self._helpers and not plans.later:
                self._measure(compiled)
            made = [Execution(compiled, self._builder, self._weights, plans, fold=fold) for _ in range(count)]
        except device.cupy().cuda.memory.OutOfMemoryError as error:
            what = f"{count} x {compiled.batch} images of {compiled.width}x{compiled.height}"
            raise translate_cuda_error(error, f"hold {what} ({size / 1e6:.0f} MB and workspaces)") from error
        finally:
            plans.save()
        for execution in made:
            self._later.add(execution)
        rebuilt = plans.rebuilt - before[2]
        settled = compiled.wide != "fp16" and not plans.unmeasured
        ours = sum(plan is OWN for plan in made[0].kernels.plans.values()) if settled else 0
        self.reasons.append(
            f"batch {compiled.batch} of {compiled.width}x{compiled.height}: {len(compiled.placement.steps)} steps, "
            f"{plans.measured - before[0]} kernels measured, {plans.cached - before[1]} cached"
            f"{f' ({rebuilt} built again)' if rebuilt else ''}, "
            f"{f'{ours} convolutions in our kernels, in fp32, ' if ours else ''}"
            f"{f'{len(plans.unmeasured)} to be measured later, ' if plans.unmeasured else ''}"
            f"{time.perf_counter() - started:.1f} s"
        )
        if plans.cache.note and plans.cache.note not in self.reasons:
            self.reasons.append(plans.cache.note)
        return made

    def _measure(self, compiled: Compiled) -> None:
        """Measure the layers that are not known side by side, if they are so many that this is faster."""
        plans = self._plans
        layers = {layer for layer in Layer.all_of(compiled).values() if layer.x_type != "fp32"}
        unknown = [layer for layer in layers if plans.microseconds(layer) is None]
        if len(unknown) >= SIDE_BY_SIDE:
            try:
                plans.measure(unknown, CANDIDATES)
            finally:
                plans.stop_workers()


def run_selftest(backend: Backend, where: Device) -> str:
    """The common self-test, with the version of cuDNN."""
    found = selftest.run(backend, where)
    return f"{_version()}, {found}"


def _version() -> str:
    number = frontend().backend_version()
    return f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}"
