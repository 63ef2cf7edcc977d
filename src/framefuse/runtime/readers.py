"""Readers: how many sources of a run are read at the same time.

Cameras and live addresses are always read in parallel, since none of them ends. The videos of a list, folder or glob
are read one after another on the CPU, where one decoder keeps the cores busy. On CUDA they are read in parallel: a
hardware decoder delivers 500 frames per second of 1080p, and a GPU has up to seven decoders. Results of different files
then interleave; those of each file stay in order. A long video that is alone is cut into segments, which are read
likewise, and its results are put back into order; if something depends on the order of its frames, these are, as far
as there is memory for those that wait (`Ahead`). The setting `readers` overrides all of this; processes that share a
GPU read fewer videos each (`fleet`).
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from framefuse.config import Settings
from framefuse.cuda import device as gpus
from framefuse.kernels.masks.grids import TOGETHER
from framefuse.kernels.masks.mattes import REACH
from framefuse.runtime.adaptive import held_by
from framefuse.runtime.decoder_process import DecoderProcess, Job
from framefuse.sources import SharedList, Source, SourceOptions, is_camera, is_image_path, open_source, videos_in
from framefuse.sources.segments import Segmented, Spacing, worth_cutting

ON_HOST = "packed", "png"
"""Mattes for which frames leave the GPU before they are composed."""
SEGMENTS_NEED = 4e9
"""Bytes that are free on a GPU where a video is cut: each decoder has surfaces, and a ring of frames."""
READERS = 8
"""Videos, or parts of one, that are read at once on CUDA. Eight keep the seven decoders of an H200 busy; with more,
threads wait for each other."""


def share(source: Any, settings: Settings, *, cut: bool = False) -> Any:
    """The source; a `SharedList` if several of its videos are to be read at once, `Segmented` if parts of one are.

    Args:
        cut: nothing depends on the frames being read in order.

    Raises:
        SourceError: a folder or glob is empty.
    """
    if isinstance(source, SharedList | Segmented) or is_camera(source):
        return source
    count = settings.readers or (READERS if settings.on_gpu else 1)
    if isinstance(source, (str, Path)):
        items: Sequence[Any] = [source] if "://" in str(source) or count == 1 else videos_in(str(source))
    else:
        items = source if isinstance(source, (list, tuple)) else [source]
    finite = all(isinstance(item, (str, Path)) and not _live(item) for item in items)
    if cut and count > 1 and (path := alone(items)):
        return Segmented(path, count) if worth_cutting(path, cut_options(settings)) else source
    if min(count, len(items)) < 2 or not finite or len(set(map(str, items))) < len(items):
        return source
    return SharedList(iter(items), min(count, len(items)))


def cut_options(settings: Settings) -> SourceOptions:
    """Options with which it is found out where a video can be cut."""
    return SourceOptions(start=settings.start, end=settings.end, max_pixels=settings.max_pixels)


def alone(source: Any) -> Path | None:
    """The file, if a source is a single one and no image."""
    item = source[0] if isinstance(source, (list, tuple)) and len(source) == 1 else source
    if not isinstance(item, (str, Path)) or _live(item):
        return None
    return path if (path := Path(item)).is_file() and not is_image_path(str(path)) else None


def ahead(path: Path, asked: int, found: Spacing, each: float, room: float) -> tuple[Segmented | None, str]:
    """How a video is read whose frames come in order, and why; None: by one decoder.

    Args:
        asked: most decoders.
        each: bytes of a decoded frame.
        room: bytes for frames that wait.
    """
    frames, places = found.frames, int(room / each)
    readers = min(asked, 1 + places // frames)  # what the segment whose turn it is decodes has not to wait
    apart = f"cut at key frames, it has parts of up to {frames} frames"
    if readers < 2:
        return None, f"one decoder reads the file: {apart}, and {room / 1e6:,.0f} MB hold {places}"
    waiting = min(frames, places // readers)
    why = f"{readers} decoders read the file side by side: {apart}, and up to {waiting} of each wait"
    return Segmented(path, readers, waiting, found.bits), why


def count(source: Any) -> int:
    """Maximum number of sources that are read at the same time."""
    if isinstance(source, SharedList | Segmented):
        return 1 if isinstance(source, Segmented) and source.ahead else source.readers
    return len(source) if _all_live(source) else 1


def decoders(source: Any) -> int:
    """Maximum number of videos, or segments of one, that are decoded at the same time."""
    return source.readers if isinstance(source, Segmented) else count(source)


def frames_held(settings: Settings, batch: int, ahead: int = 0, *, live: bool = False) -> int:
    """Frames of a decoder that a run holds at the same time.

    Args:
        ahead: frames that wait for those of other decoders.
    """
    batch = frames_of(settings, batch, live=live)
    waiting = held_by(settings) + until_written(settings, live=live) + ahead
    # One batch in the batcher and two in flight, and those between threads.
    return 1 if batch == 1 and not waiting else batch * 3 + settings.queue + waiting


def together(settings: Settings, *, live: bool = False) -> int:
    """Most frames of which a GPU makes the mattes at once: those of a file wait for later ones anyway."""
    return 1 if live or settings.low_latency else TOGETHER


def before_later(settings: Settings, *, live: bool = False) -> int:
    """Most frames that wait for later ones, with those that are made mattes of."""
    return REACH + 1 + together(settings, live=live)


def frames_of(settings: Settings, batch: int, *, live: bool = False) -> int:
    """Frames of a batch. Where mattes are made, it is the most: how many views a frame has, for each of which a batch
    has a row, is known only after its source is open."""
    return max(settings.batch, together(settings, live=live)) if settings.save_matte else batch


def queued(settings: Settings, *, live: bool = False) -> int:
    """Most frames with mattes between the model and the sink, and in both."""
    return max(settings.queue, 2 * frames_of(settings, 1, live=live)) + 2


def until_written(settings: Settings, *, live: bool = False) -> int:
    """Most frames of a decoder that stay where they are from the model until they are written; 0: they leave the GPU
    before, or are copied there, as those of a live source, which may be dropped."""
    lends = settings.on_gpu and settings.save_matte not in (None, *ON_HOST) and not (settings.save or live)
    return queued(settings) + before_later(settings) if lends else 0


def open_sources(source: Any, settings: Settings, batch: int) -> list[Source]:
    """Open what a run reads at the same time: the readers of a shared list, several live sources, or one source."""
    shared = {field.name for field in fields(SourceOptions)} & Settings.model_fields.keys() - {"device"}
    options = SourceOptions(
        **{name: getattr(settings, name) for name in shared},
        device="cuda" if settings.on_gpu else "cpu",
        held=frames_held(settings, batch, source.ahead if isinstance(source, Segmented) else 0, live=is_live(source)),
        lasting=until_written(settings, live=is_live(source)) > 0,
    )
    if isinstance(source, SharedList):
        return source.open(options)
    if isinstance(source, Segmented) and source.ahead:
        gpu = gpus.current_gpu() if settings.on_gpu else None
        job = Job(source, replace(options, vid_stride=1), settings.vid_stride, gpu)
        own = job.open()
        if not own.on_gpu:
            return [own]
        try:
            return [DecoderProcess(job, own)]
        except OSError as error:
            own.info.note(f"decoded in the process of the run: no other can be started ({error})")
            return [own]
    if isinstance(source, Segmented):
        return [source.open(options)]
    if not _all_live(source):
        return [open_source(source, options)]
    with ExitStack() as opened:
        sources = [opened.enter_context(closing(open_source(item, options))) for item in source]
        for number, item in enumerate(sources):
            item.info.number = number
        opened.pop_all()
    return sources


def is_live(source: Any) -> bool:
    """Whether what is to be read is live, judging by its name."""
    return _all_live(source) or (isinstance(source, str | Path | int) and _live(source))


def _all_live(source: Any) -> bool:
    return isinstance(source, (list, tuple)) and len(source) > 1 and all(map(_live, source))


def _live(item: Any) -> bool:
    """Whether this source never ends by itself, judging by its name; the address of a plug-in counts as live."""
    scheme, separator, _ = str(item).partition("://")
    return is_camera(item) or (bool(separator) and scheme not in ("file", "synthetic"))
