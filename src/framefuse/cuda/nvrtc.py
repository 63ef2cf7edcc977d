"""NVIDIA's run-time compiler: CUDA source to machine code (cubin) or PTX, on any machine, with or without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from framefuse.errors import CapabilityError

HOPPER = 90
"""What only this compute capability can do is part of its machine code, which no other GPU runs."""
REMEDY = "pip install nvidia-cuda-nvrtc (compute capability 7.5 and later) or nvidia-cuda-nvrtc-cu12 (down to 5.0)"


class Nvrtc:
    """One NVRTC library.

    Attributes:
        path: of the library, or its name for the system's loader.
        version: (major, minor) of its CUDA.
        architectures: compute capabilities that it supports, such as 75 or 90, ascending.
    """

    def __init__(self, library: Path | str) -> None:
        self.path = str(library)
        self._library = ctypes.CDLL(self.path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        self.version = (major.value, minor.value)
        self.architectures = sorted(known)

    def compile(self, source: str, name: str, capability: int, options: Sequence[str] = (), ptx: bool = False) -> bytes:
        """Machine code of `source` for one compute capability, or PTX, which a driver compiles.

        Raises:
            CapabilityError: this NVRTC does not support the capability, or the source has an error; the log is quoted.
        """
        if capability not in self.architectures:
            message = f"NVRTC {self.version[0]}.{self.version[1]} does not compile for sm_{capability}"
            raise CapabilityError(message, remedy=REMEDY)
        kind = f"compute_{capability}" if ptx else f"sm_{capability}{'a' if capability == HOPPER else ''}"
        flags = [f"--gpu-architecture={kind}", "--std=c++17", "--disable-warnings", *options]
        arguments = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None)
        try:
            if self._library.nvrtcCompileProgram(program, len(flags), arguments) != 0:
                log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                raise CapabilityError(f"NVRTC cannot compile {name} for sm_{capability}:\n{log}")
            return self._read(program, "PTX" if ptx else "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            reason = self._library.nvrtcGetErrorString(code).decode()
            raise CapabilityError(f"{function} failed: {reason}", remedy="install nvidia-cuda-nvrtc again")


def _candidates() -> Iterator[str]:
    """Libraries of wheels, newest first, then those of the system."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for part in ("cu13", "cuda_nvrtc"):
            yield from (str(path) for path in sorted(Path(folder, part, "lib").glob("libnvrtc.so.*")))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so")


@lru_cache(maxsize=1)
def find() -> Nvrtc:
    """The NVRTC of this installation.

    Raises:
        CapabilityError: there is none.
    """
    for candidate in _candidates():
        try:
            return Nvrtc(candidate)
        except OSError:
            continue
    raise CapabilityError("NVRTC, which compiles kernels for NVIDIA GPUs, was not found", remedy=REMEDY)
