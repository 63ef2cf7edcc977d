"""What NVDEC can decode on this GPU, and why not."""

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
"""Pixel format that FFmpeg's decoder gives -> that of NVDEC's surface for the same stream."""

ROOM = 600_000_000
"""Free bytes on the GPU without which NVDEC is not asked: it makes a CUDA context of its own, and where there is no
room for that, PyNvVideoCodec 2.2 crashes the process."""


def load_nvdec() -> Any:
    """The module PyNvVideoCodec.

    Raises:
        CapabilityError: it is missing, or finds no driver.
    """
    try:
        import PyNvVideoCodec
    except ImportError as error:
        raise CapabilityError(
            f"PyNvVideoCodec cannot be imported: {error}", remedy="pip install 'framefuse[cuda13]'"
        ) from error
    except Exception as error:  # RuntimeError, of its own check of the driver
        raise CapabilityError(
            f"PyNvVideoCodec cannot be used: {str(error).splitlines()[0]}",
            remedy="check the NVIDIA driver; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
        ) from error
    return PyNvVideoCodec


def refusal(module: Any, codec: str, sample: Frame) -> str | None:
    """Why this GPU's decoder cannot take the stream; None: it can."""
    width, height, format = sample.coded_width, sample.coded_height, sample.format
    if format.name not in SURFACES:
        return f"NVDEC gives no surface for {format.name}"
    if width % 2 or height % 2:
        return f"{width}x{height} is odd, and NVDEC rounds it up"
    known = getattr(module.cudaVideoCodec, codec, None)
    if known is None:
        return f"this PyNvVideoCodec has no {codec}"
    room = free_memory()
    if room < ROOM:
        return f"{room / 1e6:.0f} MB of the GPU's memory are free, and NVDEC wants {ROOM / 1e6:.0f}"
    limits = _limits(module, device.current_gpu(), known, format.bits)
    if isinstance(limits, str):
        return f"this GPU's NVDEC has no {codec} of {format.bits} bits ({limits})"
    if not limits.get("num_decoder_engines"):
        return f"this GPU's NVDEC has no {codec} of {format.bits} bits"
    if not (limits["width_min"] <= width <= limits["width_max"]):
        return f"a width of {width} is not {limits['width_min']} to {limits['width_max']}"
    if not (limits["height_min"] <= height <= limits["height_max"]):
        return f"a height of {height} is not {limits['height_min']} to {limits['height_max']}"
    if width * height > limits["mb_num_max"] * 256:
        return f"{width}x{height} is more than {limits['mb_num_max']} macroblocks"
    return None


_asking = threading.Lock()
_answers: dict[Any, dict[str, int]] = {}
"""Of `_limits`, by what was asked."""


def _limits(module: Any, gpu: int, codec: Any, bits: int) -> dict[str, int] | str:
    """What the decoder can do, or why it cannot. Asking takes 0.2 s, so it is done once, by one thread at a time."""
    asked = module, gpu, codec, bits
    with _asking:
        if asked not in _answers:
            chroma = getattr(module.cudaVideoChromaFormat, "420")
            try:
                _answers[asked] = module.GetDecoderCaps(gpuid=gpu, codec=codec, chromaformat=chroma, bitdepth=bits)
            except Exception as error:  # PyNvVCException, and plain RuntimeError where the driver refuses
                return str(error).splitlines()[0][:120]
        return _answers[asked]


def free_memory() -> int:
    """Bytes of the GPU's memory that are free; where ROOM is not, CuPy gives back first what it merely keeps."""
    module = device.cupy()
    if module.cuda.runtime.memGetInfo()[0] < ROOM:
        module.get_default_memory_pool().free_all_blocks()
    return int(module.cuda.runtime.memGetInfo()[0])
