"""Which encoder writes the annotated video: the GPU's own (NVENC) where a run is on one that has it, else x264."""

from __future__ import annotations

from time import monotonic
from typing import cast

import av
from av.codec import Codec
from av.video.codeccontext import VideoCodecContext

NVENC, SOFTWARE = "h264_nvenc", "libx264"
SPEEDS = {
    "ultrafast": "p1", "superfast": "p1", "veryfast": "p2", "faster": "p3", "fast": "p4", "medium": "p4",
    "slow": "p5", "slower": "p6", "veryslow": "p7",
}  # fmt: skip
"""Presets of x264 -> those of NVENC, which go from p1 to p7."""
SMALL = 256, 144
"""Width and height of a picture that every NVENC takes."""


def choose_encoder(asked: str, gpu: int | None) -> tuple[str, str]:
    """FFmpeg's name of the encoder, and why.

    Args:
        asked: that name, or auto.
        gpu: number of the GPU that a run is on; None: it is on the CPU.
    """
    if asked != "auto":
        return asked, f"encoder {asked}: as asked"
    if gpu is None:
        return SOFTWARE, f"encoder {SOFTWARE}: on the CPU, where the run is"
    why = nvenc_refuses(gpu)
    if why:
        return SOFTWARE, f"encoder {SOFTWARE}: on the CPU, since {why}"
    return NVENC, f"encoder {NVENC}: the GPU has one"


ASK_AGAIN = 60
"""Seconds after which a GPU that refused to encode is asked again."""

_answers: dict[int, tuple[float, str | None]] = {}
"""Of GPUs: when they answered, and why they do not encode."""


def nvenc_refuses(gpu: int) -> str | None:
    """Why this GPU does not encode a small picture; None: it does.

    Asking takes up to a second, so it is remembered; a refusal for a while, since a session or memory that is missing
    now may be there later.
    """
    if not is_video_encoder(NVENC):
        return "this build of FFmpeg has no NVENC"
    if gpu in _answers and (_answers[gpu][1] is None or monotonic() - _answers[gpu][0] < ASK_AGAIN):
        return _answers[gpu][1]
    width, height = SMALL
    why: str | None = None
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(NVENC, "w"))
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.options = {"gpu": str(gpu)}
        context.encode(av.VideoFrame(width, height, "yuv420p"))
        context.encode(None)
    except (av.FFmpegError, ValueError) as error:
        why = f"NVENC does not open on this GPU ({getattr(error, 'strerror', None) or error})"
    _answers[gpu] = monotonic(), why
    return why


def options_of(encoder: str, crf: int, preset: str, gpu: int | None) -> dict[str, str]:
    """The encoder's own options.

    Args:
        crf: quality of x264, lower is better: a fixed quantiser of mpeg4, the constant quality of NVENC.
        preset: speed in the encoder's words; NVENC knows x264's too.
        gpu: where NVENC works; None: wherever it likes.
    """
    if encoder == "mpeg4":
        quantiser = min(31, max(2, round(crf / 6)))
        return {"flags": "+qscale", "global_quality": str(quantiser * 118)}  # FF_QP2LAMBDA
    if encoder.endswith("_nvenc"):
        where = {} if gpu is None else {"gpu": str(gpu)}
        return {"rc": "vbr", "cq": str(crf), "b": "0", "preset": SPEEDS.get(preset, preset), **where}
    return {"crf": str(crf), "preset": preset}


def is_video_encoder(name: str) -> bool:
    """Whether this build of FFmpeg has a video encoder of that name."""
    try:
        return Codec(name, "w").type == "video"
    except ValueError:
        return False
