"""What precision engine cudnn runs in: float16, or chosen layer by layer on calibration frames and remembered."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.version import __version__
from framefuse.cuda import device
from framefuse.engines.cache import EngineCache, model_hash
from framefuse.engines.cudnn.autotune import LEAST, Choice, Chooser, chosen
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.execution import Weights
from framefuse.engines.cudnn.network import EIGHT_BITS, Type
from framefuse.engines.cudnn.plans import Plans, environment
from framefuse.engines.engine import EngineOptions
from framefuse.errors import CapabilityError, UsageError
from framefuse.models.onnx_file import is_quantised

CACHE = "cudnn-precision"
"""Folder of the choices, beside that of the kernels."""
SUFFIX = ".choice"
NOISES = 8
"""Images of noise, where a file states ranges and nobody gave frames."""
FP8_SINCE = "89"
"""Compute capability."""


class Precisions:
    """The precision that was asked for, and what came of it.

    Raises:
        CapabilityError: FP8 on a GPU without it.
        UsageError: 8 bits without frames to compare on, for a model that states no ranges of its own.
    """

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self.asked, self.precision = options.precision, "fp16"
        self.layers: list[dict[str, Any]] = []
        self._model, self._frames = model, options.calibration
        self._known: dict[tuple[int, int, int], Choice] = {}
        self.kinds: tuple[Type, ...] = ()
        quantised = is_quantised(model)
        if options.precision in EIGHT_BITS:
            self.kinds = (options.precision,)
            if not self._frames and not quantised:
                raise UsageError(
                    f"engine cudnn needs frames to choose what runs in {options.precision}",
                    remedy="--calib SOURCE: a video, images or a camera that show what the model will see",
                )
        elif options.precision == "auto" and self._frames:
            self.kinds = EIGHT_BITS
        if "fp8" in self.kinds and int(device.cupy().cuda.Device().compute_capability) < int(FP8_SINCE):
            if options.precision == "fp8":
                raise CapabilityError("this GPU has no FP8", remedy="use --precision fp16 or int8")
            self.kinds = ("int8",)
        if self.kinds:
            self.reason = f"precision {options.precision}: of each layer fp16 or {' or '.join(self.kinds)}, as measured"
        else:
            self.reason = "precision fp16: convolutions multiply float16 and add in float32"
            if options.precision == "auto":
                self.reason += "; 8 bits are tried where calibration frames are given"
            if quantised:
                self.reason += "; the quantisers of the file are left out, its 8 bit weights multiplied out"

    def apply(self, compiled: Compiled, plans: Plans, weights: Weights) -> tuple[Compiled, list[str]]:
        """The network with the types that are best for it, and what is to be said.

        Raises:
            EngineError, OSError: as the engine's own, and the cache's.
        """
        if not self.kinds:
            return compiled, []
        shape = compiled.batch, compiled.height, compiled.width
        reasons = []
        if shape not in self._known:
            images = self._images(compiled.height, compiled.width)
            key = self._key(compiled, plans, images)

            def build(path: Path) -> None:
                try:
                    chooser = Chooser(compiled, plans, weights, images, compiled.network.ranges)
                    path.write_text(json.dumps(chooser.choose(self.kinds).to_json()))
                finally:
                    plans.rest()
                    plans.save()

            cached = EngineCache(CACHE).get(key, build, suffix=SUFFIX)
            self._known[shape] = chosen(json.loads(cached.path.read_text()))
            reasons = [*self._say(self._known[shape], compiled), f"layer by layer: {cached.path}; {cached.reason}"]
        choice = self._known[shape]
        self.precision, self.layers = choice.precision, choice.layers
        return choice.applied(compiled), reasons

    def _say(self, choice: Choice, compiled: Compiled) -> list[str]:
        counts = Counter(layer["multiplies"] for layer in choice.layers)
        listed = ", ".join(f"{count} in {kind}" for kind, count in counts.most_common())
        where = f"{len(self._frames)} frames" if self._frames else "noise, since there are no frames"
        agrees = f"agrees with fp16 on {choice.agreement:.1%} ({where}; at least {LEAST:.0%})"
        line = (
            f"batch {compiled.batch} of {compiled.width}x{compiled.height}, convolutions: {listed}; "
            f"{choice.us['chosen']:.0f} us a batch, {choice.us['tuned']:.0f} with all in fp16 chosen likewise, "
            f"{choice.us['fp16']:.0f} by default; {agrees}"
        )
        return [line + (f"; {choice.note}" if choice.note else "")]

    def _images(self, height: int, width: int) -> NDArray[np.float16]:
        """(n, 3, height, width); frames of another size are sampled at the nearest pixels."""
        if not self._frames:
            return np.random.default_rng(0).random((NOISES, 3, height, width)).astype(np.float16)
        found = []
        for frame in self._frames:
            rows, columns = (np.arange(size) * have // size for size, have in zip((height, width), frame.shape[2:],
                                                                                 strict=True))  # fmt: skip
            found.append(frame[:1, :, rows][..., columns].astype(np.float16))
        return np.concatenate(found)

    def _key(self, compiled: Compiled, plans: Plans, images: NDArray[Any]) -> dict[str, str]:
        where = environment(plans.builder)
        return where | {
            "model": model_hash(self._model),
            "engine": "cudnn",
            "version": __version__,
            "device": where["gpu"],
            "precision": self.asked,
            "shapes": f"{compiled.batch}x3x{compiled.height}x{compiled.width}",
            "flags": f"least {LEAST}, images {hashlib.sha256(images.tobytes()).hexdigest()[:16]}",
        }
