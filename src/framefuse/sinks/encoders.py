"""Choice of the video encoder: NVENC if the run is on a GPU that has it, else x264."""

from __future__ import annotations

from fractions import Fraction
from time import monotonic
from typing import cast

import av
from av.codec import Codec
from av.video.codeccontext import VideoCodecContext

from framefuse.common.machine import available_cores
from framefuse.sinks.mp4 import ENCODER_SECONDS

NVENC, SOFTWARE = "h264_nvenc", "libx264"
SPEEDS = {
    "ultrafast": "p1", "superfast": "p1", "veryfast": "p2", "faster": "p3", "fast": "p4", "medium": "p4",
    "slow": "p5", "slower": "p6", "veryslow": "p7",
}  # fmt: skip
"""Presets of x264 -> those of NVENC, p1 to p7."""
PROBE_SIZE = 256, 144
"""Width and height of a frame that every NVENC supports."""


def choose_encoder(requested: str, gpu: int | None) -> tuple[str, str]:
    """FFmpeg's name of the encoder, and the reason for the choice.

    Args:
        requested: FFmpeg's name, or auto.
        gpu: number of the GPU on which the run is; None: the run is on the CPU.
    """
    if requested != "auto":
        return requested, f"encoder {requested}: as requested"
    if gpu is None:
        return SOFTWARE, f"encoder {SOFTWARE}: the run is on the CPU"
    why = nvenc_refuses(gpu)
    if why:
        return SOFTWARE, f"encoder {SOFTWARE}: on the CPU, because {why}"
    return NVENC, f"encoder {NVENC}: supported by the GPU"


RETRY_SECONDS = 60
"""Seconds after which a GPU that refused to encode is probed again."""

_probes: dict[int, tuple[float, str | None]] = {}
"""GPU -> time of its latest probe, and why it cannot encode."""


def nvenc_refuses(gpu: int) -> str | None:
    """Why this GPU cannot encode a small frame; None: it can.

    A probe takes up to a second, so the answer is cached; a refusal only for RETRY_SECONDS, because an encoder session
    or memory may become free.
    """
    if not is_video_encoder(NVENC):
        return "this build of FFmpeg has no NVENC"
    if gpu in _probes and (_probes[gpu][1] is None or monotonic() - _probes[gpu][0] < RETRY_SECONDS):
        return _probes[gpu][1]
    width, height = PROBE_SIZE
    why: str | None = None
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(NVENC, "w"))
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.options = {"gpu": str(gpu)}
        context.encode(av.VideoFrame(width, height, "yuv420p"))
        context.encode(None)
    except (av.FFmpegError, ValueError) as error:
        why = f"NVENC cannot be opened on this GPU ({getattr(error, 'strerror', None) or error})"
    _probes[gpu] = monotonic(), why
    return why


LOOKAHEAD = {
    "ultrafast": 0, "superfast": 0, "veryfast": 10, "faster": 20, "fast": 30, "medium": 40,
    "slow": 50, "slower": 60, "veryslow": 60, "placebo": 60,
}  # fmt: skip
"""Presets of x264 -> frames that it looks ahead by default."""
B_FRAMES = 4
"""Frames by which x264's reordering delays the output at most."""
FEWEST_AHEAD = 12
"""Frames of delay below which x264 has to work without frame threads, reordering and lookahead."""


def encoder_options(
    encoder: str, *, crf: int, preset: str, rate: Fraction, threads: int = 0, gpu: int | None = None
) -> tuple[dict[str, str], int]:
    """The encoder's own options, and its threads.

    Args:
        crf: quality as x264's crf, lower is better; mapped to a fixed quantiser of mpeg4 and to NVENC's cq.
        preset: the encoder's speed preset; for NVENC also those of x264.
        rate: frames per second.
        threads: 0: as many as keep the delay short, or the encoder's default.
        gpu: GPU of NVENC; None: FFmpeg's default.
    """
    if encoder == "mpeg4":
        quantiser = min(31, max(2, round(crf / 6)))
        return {"flags": "+qscale", "global_quality": str(quantiser * 118)}, threads  # FF_QP2LAMBDA
    if encoder.endswith("_nvenc"):
        where = {} if gpu is None else {"gpu": str(gpu)}
        return {"rc": "vbr", "cq": str(crf), "b": "0", "preset": SPEEDS.get(preset, preset), **where}, threads
    limits, most = _limit_delay(preset, rate) if encoder == SOFTWARE else ({}, 0)
    return {"crf": str(crf), "preset": preset, **limits}, threads or most


def _limit_delay(preset: str, rate: Fraction) -> tuple[dict[str, str], int]:
    """Options of x264, and its threads, with which it holds back at most the frames of ENCODER_SECONDS.

    What is still in the encoder when the process is killed is lost. By default x264 holds back up to 60 frames and one
    for each thread.
    """
    if preset not in LOOKAHEAD:
        return {}, 0
    frames = int(rate * Fraction(ENCODER_SECONDS))
    if frames < FEWEST_AHEAD:
        return {"tune": "zerolatency"}, 0
    threads = min(frames // 3, available_cores() * 3 // 2)
    ahead = min(LOOKAHEAD[preset], frames - threads - B_FRAMES)
    return {"rc-lookahead": str(ahead), "x264-params": "sync-lookahead=0"}, threads


def is_video_encoder(name: str) -> bool:
    """Whether this build of FFmpeg has a video encoder of this name."""
    try:
        return Codec(name, "w").type == "video"
    except ValueError:
        return False
