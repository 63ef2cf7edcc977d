"""RunPlan: every automatic decision of a run, with its reason. Nothing is opened here.

Each decision is made as soon as its facts are known, so that a wrong option fails before anything slow is done:

    plan_run             device, engine, sources read at once, batch     from the card and the settings
    RunPlan.with_ahead   decoders of a video whose frames come in order  from its key frames and the memory
    RunPlan.for_input    size of the model input                         once the source is open
    RunPlan.for_views    batches that hold the views of a frame          likewise
    RunPlan.for_memory   batches that fit into the memory of the GPU     before the engine loads the model
    RunPlan.fitted       whether they still hold all views of a frame    likewise
    RunPlan.for_output   encoder, upload mode                            once the engine has taken its memory
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

from framefuse.common.machine import memory_free
from framefuse.config import Settings
from framefuse.cuda import device as gpus
from framefuse.engines import Backend, Device, Engine, EngineOptions
from framefuse.errors import CapabilityError, UsageError
from framefuse.kernels.masks.grids import TOGETHER
from framefuse.models.card import Card
from framefuse.preprocess import Preprocess
from framefuse.runtime import choices, memory, readers, rectilinear
from framefuse.runtime.batching import IN_FLIGHT
from framefuse.runtime.program import HostProgram, Observer, Program, Selection
from framefuse.runtime.recurrent import RecurrentProgram
from framefuse.runtime.requested_sinks import STILLS
from framefuse.runtime.tracking import least_confidence
from framefuse.runtime.views import Viewer, sees_both_eyes
from framefuse.sinks import VP9
from framefuse.sources import SourceInfo, SourceOptions, is_image_path, open_spread
from framefuse.sources.segments import Segmented, spacing

if TYPE_CHECKING:
    from framefuse.runtime.cuda.uploads import UploadMode

STATEFUL = "openvino"
"""The engine that runs recurrent models."""
LIKELY = 1920, 1080
"""Frame size for which the model is loaded before a source tells its own: most have these proportions."""
HOST_KINDS = "images", "array", "camera", "synthetic"
"""Kinds of sources whose frames come from the host."""
MAX_BATCH = 64
"""As in `Settings.batch`."""
AHEAD_SHARE = 1 / 4
"""Of the memory that a run with one decoder leaves free: frames of others wait there."""
CALIBRATION_FRAMES = 32
"""Frames on which an engine chooses the precision of each layer."""


@dataclass(frozen=True)
class RunPlan:
    """The decisions of one run."""

    card: Card
    settings: Settings
    """As requested, with `device` and `encoder` decided."""
    source: Any
    """As given, or the list that several readers share."""
    engine: str
    batch: int
    gpu: int | None
    """Number of the GPU; None on the CPU."""
    reasons: Mapping[str, str | None]
    """Decision -> its reason."""
    preprocess: Preprocess
    upload_mode: "UploadMode" = "copy"
    merges: int = 0
    """Most views of a frame that run in one batch, where a GPU merges their boxes; 0: none need to."""
    live: bool = False

    def for_input(self, info: SourceInfo, *, views: bool = False) -> Self:
        """The plan with the size of the model input; UsageError if the model does not take the requested size,
        SinkError if mattes cannot be packed into the source.

        Args:
            views: whether a function of the caller gives the views.
        """
        preprocess, reason = choices.choose_preprocess(self.card, self.settings, mixed=info.mixed)
        settings, eyes = choices.choose_stereo(self.settings, info)
        alone = info.path is not None or info.kind in (*HOST_KINDS, "live")
        if settings.save_matte == "packed" and (alone or settings.stereo != "sbs"):
            from framefuse.sinks.matte import check_packable

            check_packable(info, settings.stereo)  # before the model is loaded
        settings, turned = rectilinear.chosen(settings, self.card, info, views=views)
        reasons = {**self.reasons, "input": reason, "stereo": eyes, "matte view": turned}
        return replace(self, settings=settings, preprocess=preprocess, reasons=reasons, live=info.live)

    def for_views(self, viewer: Viewer, info: SourceInfo) -> Self:
        """The plan with batches that hold all views of a frame, or of a few where mattes are made of both eyes, where a
        GPU runs them. Another `batch` than 1 stays."""
        if self.settings.on_gpu and self.card.task == "segment":
            message = f"instance masks of views are found on the CPU only, and {self.card.path.name} gives masks"
            raise CapabilityError(message, remedy="use --device cpu, or leave out tiles, roi and stereo")
        mattes = self.settings.save_matte and self.card.task == "semantic"
        if not (self.settings.on_gpu and (self.card.boxes_only or mattes)):
            return self
        batch, reasons = self.batch, dict(self.reasons)
        views = viewer.most(info.width or LIKELY[0], info.height or LIKELY[1], batch)
        if batch < views <= MAX_BATCH and self.card.dynamic_batch and self.settings.batch == 1:
            batch, reasons["batch"] = views, f"batch {views}: the views of a frame"
            rows = views * TOGETHER
            if mattes and self.settings.stereo and info.kind == "file" and not self.settings.low_latency:
                batch, reasons["batch"] = rows, f"batch {rows}: the views of {TOGETHER} frames"
        if mattes and self.settings.matte_view == "rectilinear" and batch > views:
            # What eyes and what rectilinear views show takes turns, frame by frame.
            batch, reasons["batch"] = views, f"batch {views}: the eyes of a frame, then their rectilinear views"
        if mattes:
            viewer.together = views if viewer.is_fixed and batch % views == 0 else 0
            return replace(self, batch=batch, reasons=reasons, merges=viewer.together)
        if 1 <= views <= batch and least_confidence(self.settings) == self.settings.conf:
            viewer.merges = views  # otherwise boxes that only a tracker needs would hide others
        return replace(self, batch=batch, reasons=reasons, merges=viewer.merges)

    def fitted(self, viewer: Viewer) -> Self:
        """The plan, and the viewer, where memory has made batches smaller: views of a frame may be in two of them."""
        viewer.merges = viewer.merges if viewer.merges <= self.batch else 0
        viewer.together = viewer.together if viewer.together and self.batch % viewer.together == 0 else 0
        return replace(self, merges=viewer.merges or viewer.together)

    @property
    def ahead(self) -> int:
        """Frames of each decoder that wait for those of others."""
        return self.source.ahead if isinstance(self.source, Segmented) else 0

    @property
    def bits(self) -> int:
        """Of a pixel of a decoded frame, as far as is known."""
        return self.source.bits if isinstance(self.source, Segmented) else memory.NV12

    @property
    def partial_batches(self) -> bool:
        """Whether many batches on a GPU will not be full."""
        return self.card.dynamic_batch and (self.settings.adaptive or self.live)

    def with_ahead(self) -> Self:
        """The plan with several decoders of a long video whose frames come in order, where these are worth it and
        memory is free for the frames that wait."""
        settings, card = self.settings, self.card
        asked = settings.readers or (readers.READERS if settings.on_gpu and card.task == "semantic" else 1)
        if asked == 1 or (path := readers.alone(self.source)) is None:
            return self
        if (found := spacing(path, readers.cut_options(settings))) is None:
            why = "one decoder reads the file, which is short or has no key frames where it could be cut"
            return replace(self, reasons={**self.reasons, "readers": why}) if settings.readers else self
        room: float = memory_free()  # on a GPU too: frames of a video that NVDEC refuses wait on the host
        if settings.on_gpu:
            one = memory.predict(self, self.batch, settings.slots or IN_FLIGHT, found.size, decoders=1, context=False)
            with gpus.current(self.gpu, "look at its memory"):
                room = min(room, self._room() - one.size - memory.CONTEXT)  # and that of a `DecoderProcess`
        each = memory.surface(*found.size, found.bits)
        source, why = readers.ahead(path, asked, found, each, max(0, room) * AHEAD_SHARE)
        return replace(self, source=source or self.source, reasons={**self.reasons, "readers": why})

    def _room(self) -> float:
        """Bytes of the GPU that the run may take beside CUDA."""
        free, total = gpus.memory()
        room = free - (1 - self.settings.target_utilization) * total
        limit = self.settings.max_memory
        return room if limit is None else min(room, memory.room_within(limit))

    def for_memory(self, info: SourceInfo) -> Self:
        """The plan with batches that fit into the memory of the GPU; CapabilityError if not even one frame does."""
        settings = self.settings
        if not settings.on_gpu:
            return self
        room = self._room()
        slots, size = settings.slots or IN_FLIGHT, (info.width or LIKELY[0], info.height or LIKELY[1])
        decoders = 0 if info.kind in HOST_KINDS else readers.decoders(self.source)
        batch, slots, why = memory.fitted(self, self.batch, slots, size, room, decoders=decoders)
        if not why:
            return self
        settings = settings.model_copy(update={"slots": slots})
        return replace(self, batch=batch, settings=settings, reasons={**self.reasons, "batch": why})

    def for_output(self, info: SourceInfo) -> Self:
        """The plan with encoder and upload mode; UsageError or CapabilityError if `memory` cannot be honoured."""
        settings, encoder, matte = self.settings, None, None
        encodes = settings.save or settings.save_matte not in (None, "alpha", "png")  # these have their own encoders
        stills = info.kind in STILLS and all(is_image_path(str(path)) for path in info.files)
        if encodes and not stills:
            from framefuse.sinks.video import choose_encoder

            chosen, encoder = choose_encoder(settings.encoder, self.gpu)
            settings = settings.model_copy(update={"encoder": chosen})
        elif settings.save_matte:
            kind = "PNG" if stills or settings.save_matte == "png" else "ProRes, which stores transparency,"
            unused = {"crf", "encode_preset"} & settings.model_fields_set
            if settings.encoder == VP9 and kind != "PNG":
                kind, unused = "VP9", unused - {"crf"}
            if unused:
                matte = f"{' and '.join(sorted(unused))} without effect: {kind} has no such option"
        alone = self.card.task != "semantic" or not sees_both_eyes(settings)
        if settings.save_matte and settings.matte_eyes and alone:
            why = "matte_eyes without effect: no two eyes have mattes of their own"
            matte = f"{matte}; {why}" if matte else why
        mode, uploads = self.upload_mode, None
        if settings.on_gpu:
            from framefuse.runtime.cuda.uploads import choose_upload_mode

            mode, uploads = choose_upload_mode(settings.memory)
        elif settings.memory != "auto":
            message = f"memory {settings.memory} was asked for, but on device {settings.device} no frame enters a GPU"
            raise UsageError(message, remedy="leave it out, or use --device cuda")
        reasons = {**self.reasons, "memory": uploads, "encoder": encoder, "matte": matte}
        return replace(self, settings=settings, upload_mode=mode, reasons=reasons)

    def engine_options(self) -> EngineOptions:
        """What the engine is asked for; reads the calibration frames, if there are any."""
        card, settings = self.card, self.settings
        plain = card.output_indices == (0,) and card.activation == "none" and card.box_units == "pixels"
        frames: Sequence[Any] = ()
        if settings.calib is not None:
            from framefuse.runtime.calibration import ATTEMPTS, collect

            options = SourceOptions(max_pixels=settings.max_pixels, tls_verify=settings.tls_verify, reconnect=ATTEMPTS)
            frames, _ = collect(open_spread(settings.calib, CALIBRATION_FRAMES, options), card, CALIBRATION_FRAMES)
        layout = card.layout if plain and card.boxes_only else None
        device: Device = "cuda" if settings.on_gpu else "cpu"
        given = settings.precision, settings.streams, settings.threads, settings.workspace_mb, settings.load_timeout
        free = settings.max_memory is None
        asked = EngineOptions(
            device, *given, layout, tunes_later=settings.on_gpu and free, helpers=free, calibration=frames
        )
        # Of a single source, which mostly has one view, nothing else could run beside a frame.
        alone = card.states and not settings.stereo and readers.count(self.source) == 1
        return replace(asked, streams=settings.streams or 1) if alone else asked

    def make_program(self, engine: Engine, *, observe: Observer | None = None, **options: Any) -> Program:
        """What runs the model on frames.

        Args:
            observe: see `Observer`; on the CPU only.
            options: the others of `Program`.
        """
        settings = self.settings
        classes = cast("list[int] | None", settings.classes)  # `plan_run` has replaced the names
        least = least_confidence(settings)
        selection = Selection(least, settings.iou, settings.max_det, classes, settings.agnostic_nms)
        given = engine, self.card, self.preprocess, selection
        options |= {"batch": self.batch, "slots": settings.slots}
        if settings.save_matte and self.card.task == "semantic":
            options["mattes"] = classes or ()
        if not settings.on_gpu:
            made = RecurrentProgram if self.card.states else HostProgram
            return made(*given, observe=observe, **options)
        if observe is not None:
            raise CapabilityError("the outputs of a model on a GPU cannot be observed", remedy="use --device cpu")
        from framefuse.runtime.cuda.program import CudaProgram

        options["partial_batches"] = self.partial_batches
        return CudaProgram(*given, mode=self.upload_mode, merges=self.merges, **options)

    def choices(self, of_engine: Sequence[str]) -> list[str]:
        """All reasons in the order of a report, with those that the engine itself gives."""
        before = "device", "engine"
        after = "readers", "input", "stereo", "matte view", "batch", "memory", "encoder", "matte", "track"
        return list(filter(None, [*map(self.reasons.get, before), *of_engine, *map(self.reasons.get, after)]))


def plan_run(card: Card, settings: Settings, source: Any, engine: Engine | None, *, whole: bool = False) -> RunPlan:
    """Decide everything that does not depend on the content of the source.

    Args:
        engine: an engine that is already open, if the caller has one.
        whole: a video is to be read from its beginning to its end, not in segments side by side.

    Raises:
        UsageError, CapabilityError: the model or this machine cannot do what the settings ask for.
        SourceError: a folder or glob is empty.
    """
    precision, spec = settings.precision, card.preprocess

    @cache
    def refuses(backend: Backend) -> str | None:
        if card.states and backend.name != STATEFUL:
            return "it keeps no states of recurrent models"
        return backend.refuses(card.path, precision, spec.height, spec.width)

    settings, device = choices.choose_device(settings, refuses, engine)
    if not settings.on_gpu and (limits := settings.changed("max_memory", "target_utilization")):
        message = f"{limits[0]} limits the memory of a GPU, and this run is on device {settings.device}"
        raise UsageError(message, remedy="leave it out, or use --device cuda")
    name, why = choices.choose_engine(settings, refuses, engine)
    if card.states and (name != STATEFUL or settings.on_gpu):
        message = f"{card.path.name} is a recurrent model, which engine {name} cannot run on {settings.device}"
        raise CapabilityError(message, remedy=f"use --engine {STATEFUL} --device cpu")
    choices.check_task(card, settings)
    settings = choices.choose_classes(card, settings)
    settings, tracker = choices.choose_tracker(settings)
    looks = settings.adaptive or settings.tiles or settings.roi or settings.stereo or card.states  # they remember
    cut = not (whole or looks) and settings.vid_stride == 1 and card.task != "semantic"  # its masks are large
    gpu = gpus.current_gpu() if settings.on_gpu and settings.gpu is None else settings.gpu
    shared = readers.share(source, settings, cut=cut)
    if isinstance(shared, Segmented) and settings.on_gpu:
        with gpus.current(gpu, "look at its memory"):
            room = min(gpus.memory()[0], (settings.max_memory or math.inf) * 2**20)
        if room <= readers.SEGMENTS_NEED:
            shared = replace(source, readers=1) if isinstance(source, Segmented) else source
    batch, grown = choices.choose_batch(card, settings, readers.count(shared))
    reasons = {"device": device, "engine": why, "batch": grown, "track": tracker}
    plan = RunPlan(card, settings, shared, name, batch, gpu, reasons, spec)
    return plan if cut else plan.with_ahead()
