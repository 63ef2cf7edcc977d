"""What a segmenter finds, as a video with the source's audio or as images: a matte, transparency, a composition."""

import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import SinkError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels.arrays import new, on_gpu
from framefuse.kernels.geometry.call import remap
from framefuse.kernels.geometry.projections import equirectangular_to_fisheye
from framefuse.kernels.masks.call import box_blur, composite, upsample
from framefuse.kernels.masks.canvas import OPAQUE, Canvas, Layers, Views, alike, compose, downloaded, lies_on_gpu
from framefuse.kernels.masks.grids import Grid
from framefuse.kernels.masks.guided import shrink
from framefuse.prediction import Matte, Result
from framefuse.sinks import VP9, WEBM, SinkContext
from framefuse.sinks.draw import encode_colour
from framefuse.sinks.images import FrameConverter, Meaning, Plane, StillsSink
from framefuse.sinks.video import SOFTWARE, VideoFormat, VideoSink, fill
from framefuse.sources import SourceInfo
from framefuse.sources.stereo import find, said_by_name

COLOURS = {"green": (0, 255, 0), "overlay": (255, 40, 120)}
TINT = 127
"""Opacity of an overlay, 0..255."""
COARSE = 8
"""Pixels, across and down, that a blurred background gives one sample."""
BLUR = 2
"""Samples on each side that it takes in."""
BEGUN, LIVE_BEGUN = 24, 6
"""Frames that are composed before they are written at most; those of a live source are dropped where writing stalls."""
PRORES = "prores_ks"
X264_CRF, VP9_CRF = 23, 32
"""Qualities that look alike."""
PACKED = 0.4
"""Size of the packed matte of an eye over that of the eye: its circle just fits between the corner and the picture."""
FISHEYE = 190
"""Degrees of the fisheye picture that a VR180 panorama becomes."""


class _Composing(NamedTuple):
    """A frame that a GPU composes."""

    frame: Frame
    canvas: Canvas
    unused: list[Canvas]

    def put_back(self) -> None:
        """Let another frame have the canvas."""
        self.unused.append(self.canvas)


class MatteSink(VideoSink):
    """Writes <stem>_<mode>.mp4, of the mode alpha .mov (ProRes 4444) or .webm (VP9). What a video player takes as the
    projection and the arrangement of the eyes from the end of a name, such as _180_LR, stays at its end.

    Args:
        mode: gray: the matte itself; alpha: transparent; green, blur: before green, or the blurred background;
            overlay: the foreground tinted; packed: of VR video side by side: a fisheye picture that has the mattes of
            both eyes in its corners, as VR players read it by the end of the name, _FISHEYE190_alpha.
        encoder: FFmpeg's name; auto: x264, in the mode alpha ProRes, where VP9 is the other choice.
        stereo: how the eyes are arranged, as the setting; None: the frame is one picture.
        options: see `encoder_options`.

    Attributes:
        composes_on_gpu: whether it takes frames that lie on a GPU, with mattes there, too.

    Raises:
        UsageError: an encoder without transparency was asked for in the mode alpha.
    """

    name = "matte"

    def __init__(self, *, mode: str = "gray", encoder: str = "auto", stereo: str | None = None, **options: Any) -> None:
        if mode == "alpha" and encoder not in (PRORES, VP9, "auto"):
            remedy = f"leave --encoder out: {PRORES} stores it, for editors; {VP9} does, too, for browsers"
            raise UsageError(f"the encoder {encoder} stores no transparency", remedy=remedy)
        usual = PRORES if mode == "alpha" else SOFTWARE
        super().__init__(encoder=usual if encoder == "auto" else encoder, **options)
        self._mode, self._eyes = mode, stereo
        self.composes_on_gpu = mode != "packed"
        self._canvases: dict[VideoFormat, tuple[list[Canvas], Layers]] = {}
        """At most those of one format, that of the frames on a GPU, which are not in use."""
        self._composing: deque[_Composing] = deque()
        """Frames that `begin` was called for and `write` was not yet; some are dropped in between."""
        self._written: _Composing | None = None
        """What holds the planes of the frame that is being written, if a GPU has composed it."""
        if mode == "alpha" and encoder == VP9:
            self.suffix, self.pixels, self.stored = WEBM, "yuva420p", "yuva420p"
            quality = options.get("crf", X264_CRF), options.get("threads", 0), self._low_latency
            self._options = partial(_vp9, *quality)
        elif mode == "alpha":
            self.suffix, self.pixels, self.stored = ".mov", "yuva420p", "yuva444p10le"
            self._options = partial(_prores, options.get("threads", 0))

    def open(self, context: SinkContext) -> None:
        self._stereo = find(context.source)
        if self._mode == "packed":
            check_packable(context.source, self._eyes)
        self._boxes = b"" if self._mode == "packed" else self._stereo.boxes
        super().open(context)

    def _called(self, stem: str) -> str:
        begin, end = said_by_name(stem).parts
        if not end and (numbered := re.fullmatch(r"(.+)(_\d+)", stem)):  # the run has several of that name
            begin, end = said_by_name(numbered[1]).parts
            begin += numbered[2]
        if self._mode == "packed":
            end = f"_FISHEYE{FISHEYE}" if self._stereo.projection == "equirect180" else end
            return f"{begin}{end}_alpha{self.suffix}"
        return f"{begin}_{self._mode}{end}{self.suffix}"

    def begin(self, results: Sequence[tuple[Result, Frame | None]]) -> bool:
        """Start to compose frames that `write` gets later, perhaps from another thread; whether a GPU does so."""
        most = LIVE_BEGUN if self._context.source.live else BEGUN
        given = [(frame, result) for result, frame in results if frame is not None and lies_on_gpu(frame)]
        if len(given) < len(results) or len(self._composing) + len(given) > most:
            return False
        with suppress(Exception):  # `write` fails in the same way
            for some in [given] if self._are_alike(given) else [[one] for one in given]:
                self._composing += self._compose_on_gpu(some)
            return True
        return False

    def _are_alike(self, given: Sequence[tuple[Frame, Result]]) -> bool:
        """Whether a GPU composes frames together."""
        looks = [[(part.region, part.alpha.shape) for part in _matte_of(result).parts] for _, result in given]
        meanings = {(frame.width, frame.height, frame.matrix, frame.full_range) for frame, _ in given}
        return len(meanings) == 1 and all(look == looks[0] for look in looks) and alike([frame for frame, _ in given])

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink matte needs the frame"
        if lies_on_gpu(frame):
            frame = self._downloaded(frame, result)
        else:
            self._written = None
        super().write(result, frame)

    def _downloaded(self, frame: Frame, result: Result) -> Frame:
        """A frame on a GPU on the host, composed but for transparency, until the next one."""
        if self._written is not None:
            self._written.put_back()
        self._written = self._begun(frame) or self._compose_on_gpu([(frame, result)])[0]
        planes = self._written.canvas.wait()
        shown = [plane[: frame.height, : frame.width] for plane in planes[:1]] + planes[1:3]
        pixels = PIXEL_FORMATS["gray" if len(planes) == 1 else "yuv420p"]
        return frame.replace_unchecked(planes=tuple(shown), format=pixels, ready=None, lease=None, owner=None)

    def _begun(self, frame: Frame) -> _Composing | None:
        """What `begin` has started for a frame, if it has; frames before it were dropped."""
        if not any(one.frame is frame for one in list(self._composing)):  # another thread adds to it
            return None
        while (one := self._composing.popleft()).frame is not frame:
            one.put_back()
        return one

    def _compose_on_gpu(self, given: Sequence[tuple[Frame, Result]]) -> list[_Composing]:
        """Start to compose frames that are alike, and to bring each to the host with one copy."""
        frame, result = given[0]
        format = VideoFormat(frame.width, frame.height, Meaning(frame.matrix, frame.full_range))
        (width, height), count = format.even, {"gray": 1, "alpha": 4}.get(self._mode, 3)
        whole, coarse = (height, width), (height // 2, width // 2)
        if (known := self._canvases.get(format)) is None:
            known = [], self._layers(format)
            self._canvases = {format: known}
        unused, layers = known
        drawn, made = list[tuple[Frame, Views, list[Any]]](), list[_Composing]()
        for frame, result in given:
            try:
                canvas = unused.pop()
            except IndexError:  # two threads may be here
                canvas = Canvas((whole, coarse, coarse, whole)[:count])
            parts = _matte_of(result).parts
            views = [(Grid(part.region, part.alpha.shape), part.alpha, part.guide) for part in parts]
            alpha = [new(True, whole, np.uint8)] if self._mode == "blur" else []
            drawn.append((frame, views, [*canvas.planes, *alpha]))
            made.append(_Composing(frame, canvas, unused))
        try:
            compose(drawn, layers, _matte_of(result).feather)
            for _, _, out in drawn if self._mode == "blur" else ():
                _blur(out[:3], out[3])
        except BaseException:
            for one in made:
                one.put_back()
            raise
        for one in made:
            one.canvas.start()
            self._context.copied(one.canvas.nbytes)
        return made

    def _draw(self, planes: tuple[Plane, ...], format: VideoFormat, result: Result) -> None:
        """Compose the frame, which the planes hold, with the matte."""
        if self._written is not None:
            for plane, composed in zip(planes[3:], self._written.canvas.host[3:], strict=True):
                plane[:] = composed
            return
        luma = planes[0][: format.height, : format.width]
        alpha = np.empty_like(planes[0])
        fill((alpha,), (_matte_of(result).alpha(luma),), 0)
        if self._mode == "alpha":
            planes[3][:] = alpha
        elif self._mode == "packed":
            if self._stereo.projection == "equirect180":
                outside = encode_colour((0, 0, 0), *format.meaning)
                for plane, role in zip((*planes, alpha), "yuvA", strict=True):
                    _to_fisheye(plane, outside.get(role, 0))
            _pack(planes, alpha, format)
        elif self._mode == "blur":
            _blur(planes, alpha)
        else:
            layers = self._layers(format)
            alpha = alpha if layers.opacity == OPAQUE else _weakened(alpha, layers.opacity)
            coarse = upsample(alpha, planes[1].shape)
            mattes = alpha, coarse, coarse
            for plane, own, *values in zip(planes, mattes, layers.over, layers.under, strict=False):
                over, under = (plane if value is None else _full(value, plane.shape) for value in values)
                composite(over, under, own, out=plane)
            for plane in planes[len(layers.over) :]:
                plane[:] = 128

    def _layers(self, format: VideoFormat) -> Layers:
        """What the matte separates, where the frame and colours do."""
        own = (None, None, None)
        if self._mode == "gray":
            black, white = _ends(format)
            return Layers((white,), (black,))
        if self._mode not in COLOURS:
            return Layers(own, own)
        values = encode_colour(COLOURS[self._mode], *format.meaning)
        colour = tuple(values[role] for role in "yuv")
        return Layers(colour, own, TINT) if self._mode == "overlay" else Layers(own, colour)


class MatteImagesSink(StillsSink):
    """Writes mattes/<stem>_<frame>.png, or mattes/<image>.png for images.

    Args:
        mode: as of `MatteSink`, and png: the matte itself, as gray; there is no packed image.
    """

    name = "matte_images"
    folder = "mattes"

    def __init__(self, *, mode: str = "png") -> None:
        super().__init__()
        self._mode = mode

    def open(self, context: SinkContext) -> None:
        if self._mode == "packed":
            raise SinkError("mattes are packed into videos, and the source has images", remedy="choose another --mode")
        super().open(context)

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink matte_images needs the frame"
        if lies_on_gpu(frame):  # in a run that begins with a video
            frame = downloaded(frame)
        name = f"{self.folder}/{self._context.image_name(self.name, result.frame)}.png"
        self._save(name, image_of(frame, result, self._mode, self._converter))


def image_of(frame: Frame, result: Result, mode: str, converter: FrameConverter) -> Plane:
    """A frame on the host composed with its matte: (height, width) uint8 in the modes gray and png, otherwise
    (height, width, 3), RGB, or in the mode alpha (height, width, 4)."""
    alpha = np.ascontiguousarray(_matte_of(result).alpha(converter.luma(frame)))
    if mode in ("png", "gray"):
        return alpha
    image = converter.rgb(frame)
    if mode == "alpha":
        return np.dstack((image, alpha))
    if mode == "blur":
        other = np.dstack([_blurred(image[..., channel]) for channel in range(3)])
    else:
        other = np.full_like(image, COLOURS[mode])
    if mode == "overlay":
        alpha, image, other = _weakened(alpha, TINT), other, image
    composed: Plane = composite(image, other, alpha)
    return composed


def check_packable(source: SourceInfo, eyes: str | None) -> None:
    """SinkError if mattes cannot be packed into a source: its eyes are not seen side by side, or it is no VR video."""
    known = str(find(source).projection).startswith(("equirect180", "fisheye"))
    if eyes == "sbs" and known:
        return
    remedy = "choose another mode, such as green"
    if source.kind not in ("file", "unread"):
        why = "it is no video file"
    else:
        why = "nothing says that it is VR180 or fisheye" if eyes == "sbs" else "its eyes are not seen side by side"
        remedy += "; name VR video as players expect it, such as clip_180_LR.mp4 or clip_FISHEYE190.mp4, and add "
        remedy += "--stereo sbs where that is not enough"
    raise SinkError(f"{source.uri or 'a live source'} cannot be packed with its mattes: {why}", remedy=remedy)


def _to_fisheye(plane: Plane, outside: int) -> None:
    """Turn both eyes of a VR180 panorama into fisheye pictures, in place."""
    half = plane.shape[1] // 2
    tables = _fisheye_tables(half, plane.shape[0])
    for eye in (plane[:, :half], plane[:, half : 2 * half]):
        eye[:] = remap(np.ascontiguousarray(eye)[..., None], *tables, value=outside)[..., 0]


@lru_cache(maxsize=4)
def _fisheye_tables(width: int, height: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return equirectangular_to_fisheye((width, height), (width, height), fov=FISHEYE, span=180)


def _pack(planes: tuple[Plane, ...], alpha: Plane, format: VideoFormat) -> None:
    """Put the matte of the left eye around the middle of the upper and the lower edge, that of the right eye around the
    four corners. Only its circle is put there, which lies where the fisheye picture has none."""
    height, width = alpha.shape
    eye = width // 2
    size = round(height * PACKED), round(eye * PACKED)
    y, x = ((np.arange(side) + 0.5) / side * 2 - 1 for side in size)
    circle = np.hypot(y[:, None], x) <= 1
    black, white = _ends(format)
    left, right = (
        (black + (white - black) * shrink(part, size) + 0.5).astype(np.uint8)
        for part in (alpha[:, :eye], alpha[:, eye : 2 * eye])
    )
    for matte, columns in ((left, (eye,)), (right, (0, 2 * eye))):
        for across in columns:
            for down in (0, height):
                _overlay(planes[0], matte, circle, down - size[0] // 2, across - size[1] // 2)
                for plane in planes[1:]:
                    neutral = np.full((size[0] // 2, size[1] // 2), 128, np.uint8)
                    _overlay(plane, neutral, circle[::2, ::2], down // 2 - size[0] // 4, across // 2 - size[1] // 4)


def _overlay(plane: Plane, image: Plane, where: NDArray[np.bool_], top: int, left: int) -> None:
    """Copy what of an image is inside the plane."""
    height, width = (min(a, b) for a, b in zip(image.shape, where.shape, strict=True))
    rows = slice(max(0, -top), min(height, plane.shape[0] - top))
    columns = slice(max(0, -left), min(width, plane.shape[1] - left))
    target = plane[top + rows.start : top + rows.stop, left + columns.start : left + columns.stop]
    np.copyto(target, image[rows, columns], where=where[rows, columns])


def _matte_of(result: Result) -> Matte:
    if result.matte is None:
        raise SinkError("this sink needs mattes, and this run makes none", remedy="set save_matte")
    return result.matte


@lru_cache(maxsize=8)
def _full(value: int, shape: tuple[int, int]) -> Plane:
    plane = np.full(shape, value, np.uint8)
    plane.flags.writeable = False
    return plane


def _weakened(alpha: Plane, opacity: int) -> Plane:
    """The matte times an opacity of 0..255."""
    weaker: Plane = composite(_full(opacity, alpha.shape), _full(0, alpha.shape), alpha)
    return weaker


def _blur(planes: Sequence[Any], alpha: Any) -> None:
    """Blur what is not foreground in the planes of a frame, on the host or on a GPU."""
    coarse = upsample(alpha, planes[1].shape)
    for plane, own in zip(planes, (alpha, coarse, coarse), strict=True):
        composite(plane, _blurred(plane), own, out=plane)


def _blurred(plane: Any) -> Any:
    height, width = plane.shape
    coarse = shrink(plane, (max(1, height // COARSE), max(1, width // COARSE)), white=255)
    return upsample(box_blur(box_blur(coarse, BLUR), BLUR), plane.shape, out=new(on_gpu(plane), plane.shape, np.uint8))


def _ends(format: VideoFormat) -> tuple[int, int]:
    """Luma of black and white."""
    black, white = (encode_colour(colour, *format.meaning)["y"] for colour in ((0, 0, 0), (255, 255, 255)))
    return black, white


def _vp9(crf: int, threads: int, low_latency: bool, **_: Any) -> tuple[dict[str, str], int]:
    """VP9 counts its quality from 0 to 63, stores transparency only where no frame shows a later one, and takes the
    fastest of its ways that still uses all cores."""
    quality = {"crf": str(min(63, crf + VP9_CRF - X264_CRF)), "b": "0", "auto-alt-ref": "0"}
    quality |= {"lag-in-frames": "0"} if low_latency else {}
    return {**quality, "deadline": "realtime", "cpu-used": "8", "row-mt": "1"}, threads


def _prores(threads: int, **_: Any) -> tuple[dict[str, str], int]:
    return {"profile": "4444", "vendor": "apl0", "alpha_bits": "8"}, threads
