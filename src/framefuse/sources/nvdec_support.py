"""What NVDEC on this GPU can decode, and why it cannot decode the rest."""

from __future__ import annotations

import threading
from typing import Any

from framefuse.cuda import device
from framefuse.errors import CapabilityError
from framefuse.frame import Frame

CODECS = {
    "h264": "H264",
    "hevc": "HEVC",
    "av1": "AV1",
    "vp9": "VP9",
    "vp8": "VP8",
    "mpeg2video": "MPEG2",
    "mpeg4": "MPEG4",
}
"""FFmpeg's name of a codec -> PyNvVideoCodec's."""

SURFACES = {"yuv420p": "nv12", "nv12": "nv12", "yuv420p10": "p010", "p010": "p010", "yuv420p12": "p016"}
"""Pixel format of FFmpeg's decoder -> that of NVDEC's surface for the same stream."""

MEMORY_NEEDED = 600_000_000
"""Free bytes on the GPU that NVDEC needs. It creates a CUDA context of its own, and PyNvVideoCodec 2.2 crashes the
process if there is no memory for it."""


def load_nvdec() -> Any:
    """Import PyNvVideoCodec.

    Raises:
        CapabilityError: it is not installed, or finds no driver.
    """
    try:
        import PyNvVideoCodec
    except ImportError as error:
        raise CapabilityError(f"PyNvVideoCodec fails: {error}", remedy="pip install 'framefuse[cuda13]'") from error
    except Exception as error:  # RuntimeError from its own check of the driver
        raise CapabilityError(
            f"PyNvVideoCodec cannot be used: {str(error).splitlines()[0]}",
            remedy="check the NVIDIA driver; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
        ) from error
    return PyNvVideoCodec


def refusal(module: Any, codec: str, sample: Frame) -> str | None:
    """Why NVDEC on this GPU cannot decode the stream; None if it can."""
    width, height, format = sample.coded_width, sample.coded_height, sample.format
    if format.name not in SURFACES:
        return f"NVDEC has no surface for {format.name}"
    if width % 2 or height % 2:
        return f"NVDEC would round the odd size {width}x{height} up"
    known = getattr(module.cudaVideoCodec, codec, None)
    if known is None:
        return f"this PyNvVideoCodec has no {codec}"
    free = free_memory()
    if free < MEMORY_NEEDED:
        return f"NVDEC needs {MEMORY_NEEDED / 1e6:.0f} MB of GPU memory, and {free / 1e6:.0f} MB are free"
    limits = _limits(module, device.current_gpu(), known, format.bits)
    if isinstance(limits, str):
        return f"NVDEC on this GPU has no {format.bits}-bit {codec} ({limits})"
    if not limits.get("num_decoder_engines"):
        return f"NVDEC on this GPU has no {format.bits}-bit {codec}"
    for name, side in (("width", width), ("height", height)):
        least, most = limits[f"{name}_min"], limits[f"{name}_max"]
        if not least <= side <= most:
            return f"{name} {side} is outside NVDEC's range {least}..{most}"
    if width * height > limits["mb_num_max"] * 256:
        return f"{width}x{height} is more than {limits['mb_num_max']} macroblocks"
    return None


_limits_lock = threading.Lock()
_known_limits: dict[Any, dict[str, int]] = {}


def _limits(module: Any, gpu: int, codec: Any, bits: int) -> dict[str, int] | str:
    """The decoder's capabilities, or why there are none. A query takes 0.2 s, so the answer is cached."""
    query = module, gpu, codec, bits
    with _limits_lock:
        if query not in _known_limits:
            chroma = getattr(module.cudaVideoChromaFormat, "420")
            try:
                _known_limits[query] = module.GetDecoderCaps(gpuid=gpu, codec=codec, chromaformat=chroma, bitdepth=bits)
            except Exception as error:  # PyNvVCException, and plain RuntimeError if the driver refuses
                return str(error).splitlines()[0][:120]
        return _known_limits[query]


def free_memory() -> int:
    """Free bytes of GPU memory; if they are fewer than MEMORY_NEEDED, CuPy's unused blocks are freed first."""
    module = device.cupy()
    if module.cuda.runtime.memGetInfo()[0] < MEMORY_NEEDED:
        module.get_default_memory_pool().free_all_blocks()
    return int(module.cuda.runtime.memGetInfo()[0])
