"""Which decoder a file gets on a GPU, and why: NVDEC where it takes codec, format and size, else FFmpeg on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av

from framefuse.errors import CapabilityError, FramefuseError
from framefuse.frame import Frame
from framefuse.sources.decoder import Decoder, HostDecoder
from framefuse.sources.nvdec_support import CODECS, load_nvdec, refusal
from framefuse.sources.source import SourceInfo, SourceOptions, note


def choose_decoder(
    stream: Any, options: SourceOptions, info: SourceInfo, first_frame: Callable[[], Frame]
) -> tuple[Decoder, str]:
    """NVDEC where it can decode this stream, else FFmpeg on the host; and why.

    Args:
        first_frame: decodes the first frame on the host; it tells what the header leaves open (colours, rotation).
    """
    try:
        module = load_nvdec()
    except CapabilityError as error:
        return HostDecoder(), f"decoded by FFmpeg on the host: {error.message}"
    name = stream.codec_context.name
    if name not in CODECS:
        return HostDecoder(), f"decoded by FFmpeg on the host: NVDEC has no {name}"
    try:
        sample = first_frame()
    except FramefuseError as error:
        return HostDecoder(), f"decoded by FFmpeg on the host: its first picture cannot be looked at ({error.message})"
    reason = refusal(module, CODECS[name], sample)
    if reason:
        return HostDecoder(), f"decoded by FFmpeg on the host: {reason}"
    from framefuse.sources.nvdec import NvDecoder

    try:
        decoder = NvDecoder(module, stream, sample, low_latency=options.low_latency, held=options.held)
    except av.FFmpegError as error:
        return HostDecoder(), f"decoded by FFmpeg on the host: {error.strerror}"
    if options.held > 1:
        note(info, f"surfaces are copied on the GPU, once a frame: up to {options.held} are held at the same time")
    return decoder, f"decoded by NVDEC ({name})"
