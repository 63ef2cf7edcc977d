"""Model: a detector that stays open, for single images and for one Pipeline after another."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from framefuse.common.machine import trim_heap
from framefuse.common.redact import brief
from framefuse.config import Settings, settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import open_engine
from framefuse.errors import EngineError, UsageError
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.prediction import Result
from framefuse.runtime.batching import IN_FLIGHT, FrameBatcher
from framefuse.runtime.choices import choose_rung
from framefuse.runtime.plan import plan_run
from framefuse.runtime.program import FrameResult, Program
from framefuse.runtime.stages import sized
from framefuse.runtime.views import viewer_for
from framefuse.sources import Source, SourceInfo, SourceOptions, find, is_image_path, open_paths, open_source
from framefuse.sources.source import is_image


class Model:
    """A detector that stays open: give it images, or give it to any number of Pipelines.

        model = framefuse.Model("yolov8n.onnx")
        result = model(image)
        for result in framefuse.Pipeline("video.mp4", model):
            ...

    An input size is compiled when it is first seen, which takes about a second on a CPU. Calls of several threads take
    turns; Pipelines may run meanwhile.

    Args:
        model: path of an ONNX file, the name of a shipped model, or a ladder.json of `framefuse profile`.
        settings: all options as one object; `options` then override single fields of it.
        options: fields of `Settings`, and `preset`. Those of the engine (`engine`, `device`, `precision`, `threads`,
            `streams`, ...) hold for the Pipelines, too; each of these may override the others, such as `conf`. The
            preset is latency unless you choose another one: all cores work on one image.

    Attributes:
        card: what is known about the model: classes, preprocessing, layout.
        engine: what runs it.

    Raises:
        UsageError, CapabilityError, ModelError, EngineError: see errors.py.
    """

    def __init__(self, model: str | Path, *, settings: Settings | None = None, **options: Any) -> None:
        chosen = choose_rung(model, settings_from(options, base=settings))
        self.given = chosen.settings
        """The settings that a Pipeline with this model starts from."""
        self.card = read_card(find_model(chosen.model))
        if settings is None and "preset" not in options:
            options["preset"] = "latency"
        info = SourceInfo("", "array", mixed=True)
        own = choose_rung(model, settings_from(options, base=settings)).settings
        if own.save_matte:
            raise UsageError("save_matte was asked for of a Model, which writes nothing", remedy="use a Pipeline")
        plan = plan_run(self.card, own, None, None).for_input(info).for_output(info)
        with gpus.current(plan.gpu, "open the model"):
            self.engine = open_engine(plan.engine, self.card.path, plan.engine_options())
            self._viewer = viewer_for(plan.settings, self.card, plan.preprocess)
            if self._viewer:
                plan = plan.for_views(self._viewer, info)
            self._program = plan.make_program(self.engine)
            if self._viewer:
                self._viewer.keep_up(self._program, plan.settings.target_fps)
        self._plan = plan
        trim_heap()
        self._turn, self._closed = threading.Lock(), False

    @property
    def names(self) -> dict[int, str]:
        """Class names by class number."""
        return dict(self.card.names)

    @property
    def settings(self) -> Settings:
        """As requested, with the device decided."""
        return self._plan.settings

    @property
    def imgsz(self) -> list[int]:
        """Height and width of its input, before padding shrinks."""
        spec = self._plan.preprocess
        return [spec.height, spec.width]

    @property
    def has_views(self) -> bool:
        """Whether it sees several views of an image: tiles, regions or the eyes of a stereo image."""
        return self._viewer is not None

    @overload
    def __call__(self, images: Sequence[Any]) -> list[Result]: ...
    @overload
    def __call__(self, images: Any) -> Any: ...
    def __call__(self, images: Any) -> Any:
        """Find the objects of one image or of several.

        Args:
            images: an image, or a list of them: an array (h, w, 3) of uint8 in the order BGR as in OpenCV, gray (h, w)
                or BGRA (h, w, 4); a PIL image; the path of an image file; a `Frame`. A stack (n, h, w, 3) counts as a
                list.

        Returns:
            A `Result`, or a list of them in the order of the images.

        Raises:
            UsageError: an item is no image, or the model is closed.
            SourceError: a file cannot be read.
            EngineError: the engine fails, or needs longer than `request_timeout`.
        """
        several = isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)
        frames = [self.frame(image, index) for index, image in enumerate(images if several else [images])]
        with self._turn, gpus.current(self._plan.gpu, "run the model"):
            self.check_open()
            try:
                found = list(self._run(frames))
            except BaseException:
                if self._viewer is not None:
                    self._viewer.forget()
                self._closed |= not self._program.discard()  # an engine that does not answer is of no use any more
                raise
        results = [replace(result, pixels=frame) for result, frame in zip(found, frames, strict=True)]
        return results if several else results[0]

    def _run(self, frames: Sequence[Frame]) -> Iterator[Result]:
        if self._viewer is None:
            results = self._run_rows([([frame], 1) for frame in frames])
        else:
            rows = [group for frame in frames for group in self._viewer.rows(frame)]
            results = self._viewer.join(self._run_rows(rows))
        return (found.result for found in sized(results, self._plan.settings.min_area))

    def _run_rows(self, rows: Iterable[tuple[Sequence[Frame], int]]) -> Iterator[FrameResult]:
        """The results of groups of rows that run together, each with the places that it takes in a batch."""
        program, batcher = self._program, FrameBatcher[Frame](self._plan.batch, 0)
        timeout = self._plan.settings.request_timeout
        for group, places in rows:
            shape = program.batch_key(group[0]), group[0].format
            for batch in batcher.add(*group, shape=shape, reader=None, now=0, places=places):
                yield from program.submit(batch)
        for batch in batcher.flush():
            yield from program.submit(batch)
        while program.in_flight:
            finished = list(program.finish(timeout or None))
            if not finished:
                remedy = "raise request_timeout, or use another engine"
                raise EngineError(f"engine {self.engine.name} has not answered for {timeout:g} s", remedy=remedy)
            yield from finished

    def program(self, batch: int) -> Program:
        """A new program of so many rows on this engine, which `close` of the program does not close. On a GPU it takes
        a batch while another one runs, whatever `slots` is: a single call has no use for that."""
        plan = replace(self._plan, batch=batch)
        if plan.settings.on_gpu:
            plan = replace(plan, settings=plan.settings.model_copy(update={"slots": IN_FLIGHT}))
        with gpus.current(plan.gpu, "open a program"):
            return plan.make_program(self.engine, closes_engine=False)

    def frame(self, image: Any, index: int = 0) -> Frame:
        """An image as a call takes it, as a frame. UsageError or SourceError if it is none, or cannot be read."""
        if isinstance(image, Frame):
            return image
        if isinstance(image, np.ndarray):
            return Frame.from_array(image, index=index)
        options = SourceOptions(max_pixels=self._plan.settings.max_pixels)
        if is_image(image):
            source: Source = open_source(image, options)
        elif isinstance(image, str | Path) and is_image_path(str(image)):
            source = open_paths(find(str(image)), options)
        else:
            remedy = "pass an array, a PIL image, the path of an image or a list of these; a Pipeline reads videos"
            raise UsageError(f"{brief(image)} is not an image", remedy=remedy)
        with closing(source):
            return next(iter(source)).replace_unchecked(index=index)

    def check_open(self) -> None:
        """UsageError: the model is closed."""
        if self._closed:
            raise UsageError(f"the model {self.card.path.name} is closed", remedy="open it again")

    def close(self) -> None:
        """Free the engine. Pipelines with this model must have ended. Callable repeatedly."""
        with self._turn:
            self._closed = True
            self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<framefuse.Model {self.card.path.name}: {len(self.card.names)} classes, engine {self.engine.name}>"
