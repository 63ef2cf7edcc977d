"""Doctor: runs a tiny job on every part of an installation to find out what works."""

import contextlib
import ctypes
import io
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from framefuse.common.machine import available_cores, memory_limit
from framefuse.common.ort import onnxruntime
from framefuse.common.text import counted, first_line
from framefuse.common.version import __version__
from framefuse.config import settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import ENGINES, backends, engine_names, find_backend
from framefuse.engines.backend import version_of
from framefuse.errors import CapabilityError, EngineError, FramefuseError
from framefuse.models import LICENCE, REINSTALL, SHIPPED, fetched_models, shipped_model

Status = Literal["PASS", "FAIL", "ABSENT"]

PACKAGES: Final = (
    *("numpy", "av", "openvino", "onnxruntime", "onnxruntime-gpu", "torch", "onnx", "apache-tvm", "apache-tvm-ffi"),
    *("tensorrt", "tensorrt-rtx", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend"),
    "PyNvVideoCodec",
)
FRAMES: Final = 8
"""Of the clips that are encoded and decoded."""
CPU_FEATURES: Final = (
    *("sse4_2", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)


@dataclass(frozen=True)
class Check:
    """The outcome of one tiny job."""

    name: str
    status: Status
    detail: str
    """What works, or why it does not."""
    remedy: str = ""
    core: bool = False
    """Whether framefuse cannot work without it."""


def facts() -> dict[str, str]:
    """Facts about this machine and installation: versions, CPU, cores."""
    features = {*_cpuinfo("flags").split(), *_cpuinfo("Features").split()}  # of x86 and of Arm
    cpu = _cpuinfo("model name") or platform.processor() or platform.machine()
    found = {
        "framefuse": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{cpu}, usable cores: {available_cores()}",
        "memory": f"{size >> 20:,} MiB allowed" if (size := memory_limit()) else "not limited",
        "cpu features": " ".join(name for name in CPU_FEATURES if name in features) or "unknown",
    }
    return found | {name: number for name in PACKAGES if (number := version_of(name))}


def checks() -> Iterator[Check]:
    """Run the tiny jobs in turn and yield each Check as soon as its job is done."""
    yield _try("kernels", _kernels, core=True)
    yield _try("decode", partial(_video, "mpeg4"), core=True)
    yield _try("encode libx264", partial(_video, "libx264"), remedy="use another encoder: --encoder mpeg4")
    driver = _try("nvidia driver", _driver, remedy="needed for --device cuda only")
    for backend in backends():
        device = backend.capabilities.devices[0]
        check = _try(f"engine {backend.name}", partial(backend.selftest, device), core=backend.core)
        absent = device == "cuda" and backend.missing(device)
        yield _of_gpu(check, driver, backend.install(device)) if absent else check
    for name in sorted(engine_names().keys() - ENGINES.keys()):
        yield _try(f"engine {name}", partial(_plug_in, name))
    yield _try("onnxruntime packages", _onnxruntime_packages)
    yield _try("shipped models", _shipped_models, remedy=REINSTALL)
    yield _try("fetched models", _fetched_models)
    yield driver
    for name, job in (("cuda", _cuda), ("nvdec", _nvdec), ("nvenc", _nvenc)):
        yield _of_gpu(_try(name, job), driver)
    from framefuse.runtime.choices import choose_device

    chosen = choose_device(settings_from({}), lambda backend: None)[1]  # for a model that every engine can run
    yield Check("device auto", "PASS", chosen.removeprefix("device "))


def _plug_in(name: str) -> str:
    backend = find_backend(name)
    return f"plug-in: {backend.selftest(backend.capabilities.devices[0])}"


def _try(name: str, job: Callable[[], str], *, core: bool = False, remedy: str = "") -> Check:
    try:
        return Check(name, "PASS", job(), core=core)
    except ModuleNotFoundError as error:
        return Check(name, "ABSENT", str(error), remedy, core)
    except FramefuseError as error:
        status: Status = "ABSENT" if isinstance(error, CapabilityError) else "FAIL"
        return Check(name, status, error.message, error.remedy or remedy, core)
    except Exception as error:  # any failure of a part is a finding
        return Check(name, "FAIL", f"{type(error).__name__}: {first_line(error)}", remedy, core)


def _of_gpu(check: Check, driver: Check, install: str = "pip install 'framefuse[cuda13]'") -> Check:
    """A check of what runs only on NVIDIA GPUs: without a GPU, installing a package does not help."""
    if check.status != "ABSENT" or driver.status == "PASS":
        return check
    return replace(check, detail=driver.detail, remedy=f"for machines with an NVIDIA GPU: {install}")


def _shipped_models() -> str:
    files = [shipped_model(name) for name in SHIPPED]
    return f"{len(files)} files are intact, {LICENCE} ({files[0].parent})"


def _fetched_models() -> str:
    found = fetched_models()
    return ", ".join(f"{name} ({about.get('licence', 'not stated')})" for name, about in found.items()) or "none"


def _kernels() -> str:
    """The compiled preprocessing kernel against its reference, on one small frame of noise."""
    from framefuse import kernels
    from framefuse.frame import PIXEL_FORMATS, Frame
    from framefuse.lab.parity.chain import preprocessed
    from framefuse.preprocess import Preprocess

    library = kernels.describe()
    noise = np.random.default_rng(0)
    pixels = PIXEL_FORMATS["yuv420p"]
    planes = tuple(noise.integers(16, 236, shape, np.uint8) for shape in pixels.plane_shapes(99, 61))
    frame, meaning = Frame(planes, pixels), Preprocess(64, 64)
    out, expected = (preprocessed(meaning, frame, ours=ours)[0] for ours in (True, False))
    worst = float(np.abs(out - expected).max() * 255)
    if not worst < 1:
        raise RuntimeError(f"{library.level} is {worst:.3g} grey levels off its reference")
    return f"{library.level} ({library.reason}), {worst:.1g} grey levels off the reference at most"


def _video(encoder: str) -> str:
    """Encode a few frames and decode them again."""
    import av

    try:
        av.Codec(encoder, "w")
    except av.error.FFmpegError as error:
        raise CapabilityError(f"this FFmpeg has no encoder {encoder}") from error
    memory = io.BytesIO()
    _write_grey(memory, "matroska", encoder, 64, 48)
    memory.seek(0)
    with av.open(memory, "r") as reader:
        _check_grey([int(frame.to_ndarray()[0, 0]) for frame in reader.decode(video=0)])
    return f"PyAV {av.__version__}, FFmpeg {av.ffmpeg_version_info}"


def _write_grey(target: Any, container: str, encoder: str, width: int, height: int) -> None:
    """A clip of FRAMES frames, each 20 grey levels brighter than the one before."""
    import av

    with av.open(target, "w", format=container) as writer:
        stream = cast(av.VideoStream, writer.add_stream(encoder, rate=30, width=width, height=height))
        stream.pix_fmt = "yuv420p"
        for index in range(FRAMES):
            grey = np.full((height * 3 // 2, width), 20 * index, np.uint8)
            writer.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="yuv420p")))
        writer.mux(stream.encode(None))


def _check_grey(levels: Sequence[int]) -> None:
    """Compare the first pixel of each frame with what `_write_grey` wrote."""
    worst = max((abs(level - 20 * index) for index, level in enumerate(levels)), default=255)
    if len(levels) != FRAMES or worst > 8:
        raise RuntimeError(f"{len(levels)} of {FRAMES} frames came back, {worst} grey levels off")


def _onnxruntime_packages() -> str:
    plain, gpu = version_of("onnxruntime"), version_of("onnxruntime-gpu")
    if plain and gpu:
        message = f"onnxruntime {plain} and onnxruntime-gpu {gpu} are both installed; they overwrite each other's files"
        raise EngineError(message, remedy="pip uninstall onnxruntime onnxruntime-gpu, then install one of them")
    found = f"onnxruntime-gpu {gpu}" if gpu else f"onnxruntime {plain}" if plain else "none"
    if plain or gpu:
        try:
            providers = onnxruntime("ort").get_available_providers()
        except CapabilityError as error:
            raise EngineError(f"{found} cannot be imported: {error.__cause__}", remedy="reinstall it") from error
        found += f"; providers {', '.join(name.removesuffix('ExecutionProvider') for name in providers)}"
    return f"no conflict ({found})"


def _driver() -> str:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CapabilityError("no NVIDIA driver (libcuda.so.1 is missing)") from error
    if code := cuda.cuInit(0):
        raise RuntimeError(f"the NVIDIA driver does not start (cuInit returns {code})")
    number, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        raise CapabilityError("the NVIDIA driver finds no GPU", remedy="check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES")
    return f"supports CUDA {gpus.version(number.value)}, {counted(count.value, 'GPU')}"


def _cuda() -> str:
    """One of our kernels, compiled and launched; reports the CUDA versions in use."""
    from framefuse.cuda import nvrtc
    from framefuse.kernels.masks import call as masks

    cp = gpus.cupy()
    runtime = cp.cuda.runtime
    scores = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
    if not (cp.asnumpy(masks.argmax(cp.asarray(scores))) == scores.argmax(1)).all():
        raise RuntimeError("the arg-max kernel gives other classes than NumPy")
    properties = runtime.getDeviceProperties(runtime.getDevice())
    free, total = runtime.memGetInfo()
    compiler = ".".join(map(str, nvrtc.find().version))
    return (
        f"{properties['name'].decode()} (compute capability {properties['major']}.{properties['minor']}), "
        f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free, CUDA runtime {gpus.version(runtime.runtimeGetVersion())}, "
        f"driver for {gpus.version(runtime.driverGetVersion())}, NVRTC {compiler}, CuPy {cp.__version__}"
    )


def _nvenc() -> str:
    """One small image through the GPU's encoder."""
    from framefuse.sinks.video import NVENC, nvenc_refuses

    if why := nvenc_refuses(0):
        raise CapabilityError(why)
    return f"{NVENC}, used with device cuda"


def _nvdec() -> str:
    """A few frames, encoded on the CPU and decoded by the GPU."""
    from framefuse.lab.parity.chain import on_host
    from framefuse.sources import SourceOptions, open_source
    from framefuse.sources.nvdec import load_nvdec

    load_nvdec()
    gpus.cupy()
    levels: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "grey.mp4")
        _write_grey(str(path), "mp4", "libx264", 256, 144)
        with contextlib.closing(open_source(path, SourceOptions(device="cuda"))) as source:
            for frame in source:
                if isinstance(frame.planes[0], np.ndarray):
                    raise CapabilityError("; ".join(source.info.notes) or "the clip was decoded on the host")
                levels.append(int(on_host(frame).planes[0][0, 0]))
    _check_grey(levels)
    return f"PyNvVideoCodec {version_of('PyNvVideoCodec')}, H.264 decoded into GPU memory"


def _cpuinfo(key: str) -> str:
    """First value of a key in /proc/cpuinfo; empty if there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
