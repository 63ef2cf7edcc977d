"""Writes the benchmark clips: H.264 in MP4, 300 frames at 30 fps, about 2.6 Mb/s at 1080p, kept in benchmarks/.cache.

    python -m benchmarks.clips [1080p 768 1078 1080p_audio ...]

The image is benchmarks/scene.py, so the clips need no download, and 1080p is the same file each time, given
the same PyAV. At widths that are no multiple of 16, x264 reads memory that it did not set: two runs give the same
image but not the same bytes. All peers of a comparison read one file. 1366x768 and 1918x1078 are there because
their planes are wider in memory than in the image (line_size > width) and because their chroma planes have odd
heights or widths, which is where a reader of planes goes wrong. The clips are not tagged with a colour matrix, as
most files are not.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import Interpolation

from benchmarks.scene import Scene

CACHE = Path(__file__).parent / ".cache"
FPS = 30
FRAMES = 300
BIT_RATE_1080P = 2_600_000
SAMPLE_RATE = 48_000


@dataclass(frozen=True)
class Clip:
    """One benchmark clip."""

    width: int
    height: int
    audio: bool = False
    seed: int = 0


CLIPS = {
    "1080p": Clip(1920, 1080),
    "768": Clip(1366, 768),
    "1078": Clip(1918, 1078),
    "1080p_audio": Clip(1920, 1080, audio=True),
    "calibration": Clip(1920, 1080, seed=1),
}
STREET = "synthetic://street?seed=9001&frames=300&size=1280x720&split=test"
"""What trained models are timed and scored on: 300 frames of the synthetic world's test split."""


def clip(name: str) -> Path:
    """The path of a benchmark clip; it is written first if the cache does not have it."""
    spec = CLIPS[name]
    path = CACHE / f"{name}.mp4"
    if spec.audio:
        return cached(path, lambda partial: write_with_audio(clip("1080p"), partial), "scene", "clips")
    return cached(path, lambda partial: write_video(spec, partial), "scene", "clips")


def long_clip(clip: Path, path: Path, times: int) -> Path:
    """The packets of a clip, several times."""
    with av.open(str(clip)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        offset = 0
        for _ in range(times):
            source.seek(0)
            end = 0
            for packet in source.demux(source.streams.video[0]):
                if packet.dts is None:
                    continue
                end = max(end, packet.pts + packet.duration)
                packet.pts, packet.dts = packet.pts + offset, packet.dts + offset
                packet.stream = stream
                target.mux(packet)
            offset += end
    return path


def street() -> tuple[Path, Path]:
    """A clip of the synthetic street, and its exact truth as a COCO file beside it."""
    from framefuse.cli.synth import write_clip
    from framefuse.world import World

    folder = CACHE / "street"

    def write(partial: Path) -> None:
        for made in write_clip(World.parse(STREET), partial):
            made.rename(made.with_name(f"street{made.suffix}"))

    cached(folder, write, "clips")
    return folder / "street.mp4", folder / "street.json"


def cached(path: Path, write: Callable[[Path], object], *sources: str) -> Path:
    """`path`, made by `write` if it is missing or older than one of the `sources` (modules of this package).

    An interrupted run leaves no half-written file under that name, and two processes may make it at the same time.
    """
    made_by = [Path(__file__).with_name(f"{name}.py") for name in sources]
    if not path.exists() or path.stat().st_mtime < max(source.stat().st_mtime for source in made_by):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
        write(partial)
        partial.rename(path)
    return path


def write_video(spec: Clip, path: Path, *, frames: int = FRAMES) -> None:
    """Encodes the scene, scaled to the clip's size; the bit rate per pixel is the same for every size."""
    scene = Scene(frames=frames, seed=spec.seed)
    with av.open(path, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = spec.width, spec.height, "yuv420p"
        stream.bit_rate = BIT_RATE_1080P * spec.width * spec.height // (1920 * 1080)
        stream.options = {"preset": "medium"}
        # x264's output depends on its number of threads, so that is fixed; it must not follow the machine.
        stream.thread_type, stream.codec_context.thread_count = "FRAME", 2
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(scene.render(index), format="rgb24")
            scaled = frame.reformat(spec.width, spec.height, "yuv420p", interpolation=Interpolation.BICUBIC)
            container.mux(stream.encode(scaled))
        container.mux(stream.encode(None))


def write_with_audio(video: Path, path: Path) -> None:
    """Copies the video packets of `video` and adds a stereo AAC track of two gliding tones, of the same length."""
    with av.open(video) as source, av.open(path, "w", format="mp4") as container:
        image = source.streams.video[0]
        copy = container.add_stream_from_template(image)
        sound = container.add_stream("aac", rate=SAMPLE_RATE, layout="stereo")
        for packet in source.demux(image):
            if packet.dts is not None:
                packet.stream = copy
                container.mux(packet)
        seconds = np.arange(FRAMES * SAMPLE_RATE // FPS) / SAMPLE_RATE
        tones = 0.2 * np.sin(2 * np.pi * np.stack([220 + 20 * seconds, 330 - 10 * seconds]) * seconds)
        frame = av.AudioFrame.from_ndarray(tones.astype(np.float32), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))


def main(arguments: list[str]) -> None:
    """Writes the named clips and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CLIPS), help=f"any of {', '.join(CLIPS)}; default: all")
    for name in parser.parse_args(arguments).names:
        path = clip(name)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
