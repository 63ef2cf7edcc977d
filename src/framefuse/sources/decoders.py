"""Choice of the decoder on a GPU: NVDEC if it supports the codec, format and size, else FFmpeg on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av

from framefuse.errors import CapabilityError, FramefuseError
from framefuse.frame import Frame
from framefuse.sources.decoder import Decoder
from framefuse.sources.nvdec_support import CODECS, load_nvdec, refusal
from framefuse.sources.source import SourceInfo, SourceOptions, note


def choose_decoder(
    stream: Any, options: SourceOptions, info: SourceInfo, first_frame: Callable[[], Frame], host: Decoder
) -> tuple[Decoder, str]:
    """NVDEC if it can decode this stream, else FFmpeg on the host; and the reason.

    Args:
        first_frame: decodes the first frame on the host; it tells what the header does not (colours, rotation).
        host: FFmpeg's decoder for the stream.
    """

    def on_host(reason: str | None) -> tuple[Decoder, str]:
        return host, f"decoded by FFmpeg on the host: {reason}"

    try:
        module = load_nvdec()
    except CapabilityError as error:
        return on_host(error.message)
    name = stream.codec_context.name
    if name not in CODECS:
        return on_host(f"NVDEC has no {name}")
    try:
        sample = first_frame()
    except FramefuseError as error:
        return on_host(f"the first frame cannot be decoded ({error.message})")
    if reason := refusal(module, CODECS[name], sample):
        return on_host(reason)
    from framefuse.sources.nvdec import NvDecoder

    try:
        decoder = NvDecoder(module, stream, sample, low_latency=options.low_latency, held=options.held)
    except av.FFmpegError as error:
        return on_host(error.strerror)
    if options.held > 1:
        note(info, f"each frame is copied twice on the GPU, as readers hold up to {options.held} frames at a time")
    else:
        note(info, "each frame is copied once on the GPU, by PyNvVideoCodec")
    return decoder, f"decoded by NVDEC ({name})"
