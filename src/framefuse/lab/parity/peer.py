"""Comparison with ultralytics: the same video and model in a separate Python, stage by stage."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import os_errors_as
from framefuse.errors import CapabilityError, EngineError
from framefuse.frame import Frame
from framefuse.lab.parity.chain import Chain, Raw, Stage, colours, preprocessed, with_area
from framefuse.lab.parity.compare import Check, Limits, PixelDifference
from framefuse.prediction import Detections

SCRIPT = Path(__file__).with_name("peer_script.py")
PATIENCE = 600
"""Time limit of ultralytics in seconds."""
RESIZE = 2.0
"""Grey levels that 8-bit fixed-point resizing of the same image may differ from ours."""
POSTPROCESS = Limits(0.99, 0.001)
WHOLE = Limits(0.80, 0.15)
"""Colour conversion differs between the decoders, and 8 bits from float: boxes move with the pixels."""


class PeerFrame(NamedTuple):
    """The intermediate results of ultralytics for one frame."""

    image: NDArray[np.uint8]
    """(height, width, 3) BGR, by OpenCV."""
    input: NDArray[np.float32]
    """(3, height, width)"""
    outputs: tuple[NDArray[np.float32], ...]
    boxes: Detections


class Peer(NamedTuple):
    name: str
    frames: list[PeerFrame]


def run_peer(python: Path, model: Path, video: Path, seconds: Sequence[float], options: dict[str, Any]) -> Peer:
    """Run ultralytics in an interpreter that has it, on the frames at these seconds after the first frame of the video,
    with options of its `predict`. CapabilityError if the interpreter is missing or lacks ultralytics, EngineError if
    ultralytics fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = {"model": str(model.resolve()), "video": str(video.resolve()), "seconds": [*seconds], "out": folder}
        # Symbolic links stay: resolved, the Python of a virtual environment is another one.
        called = str(python.absolute()) if python.exists() else str(python)
        words = [called, str(SCRIPT), json.dumps({**asked, "options": options})]
        with os_errors_as(CapabilityError, f"{python} cannot be run", "check --peer-python"):
            try:
                done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
            except subprocess.TimeoutExpired as error:
                raise EngineError(f"ultralytics did not finish within {PATIENCE} s") from error
        if "No module named 'ultralytics'" in done.stderr:
            raise CapabilityError(f"{python} has no ultralytics", remedy=f"{python} -m pip install ultralytics")
        versions = Path(folder, "versions.json")
        if done.returncode or not versions.exists():
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise EngineError(f"ultralytics failed on {model.name}: {last}")
        name = "ultralytics {ultralytics} + OpenCV {opencv}".format(**json.loads(versions.read_text()))
        paths = [Path(folder, f"{number}.npz") for number in range(len(seconds))]
        return Peer(name, [_read(path) for path in paths if path.exists()])


def run_ours(chain: Chain, peer: Peer, stage: Stage) -> list[Raw | None]:
    """Raw outputs of our engine on the peer's inputs; None for an input whose size differs from ours."""
    sizes = [chain.spec.place(*frame.image.shape[1::-1]).size for frame in peer.frames]
    pairs = zip(peer.frames, sizes, strict=True)
    return [stage.run(frame.input) if frame.input.shape[:0:-1] == size else None for frame, size in pairs]


def compare(
    chain: Chain, peer: Peer, frames: Sequence[Frame], found: Sequence[Detections], raws: Sequence[Raw | None],
    engine_name: str, limits: Limits,
) -> list[Check]:  # fmt: skip
    """Our stages against the peer's, each on the output of the peer's previous stage.

    Our boxes `found` for the same frames are those of the whole pipeline; `raws` are from `run_ours`.
    """
    colour, resize = PixelDifference(), PixelDifference()
    widest = Limits(min(WHOLE.iou, limits.iou), max(WHOLE.score, limits.score))
    engine, post, whole = map(chain.difference, (limits, POSTPROCESS, widest))
    sizes: set[str] = set()
    for theirs, frame, boxes, mine in zip(peer.frames, frames, found, raws, strict=False):
        colour.add(colours(frame, ours=True), theirs.image[..., ::-1].transpose(2, 0, 1))
        # The peer is the reference of `add`, which pairs boxes in the order of the reference.
        whole.add(theirs.boxes, boxes)
        image = Frame.from_array(theirs.image)
        pixels, placement = preprocessed(chain.spec, image, ours=True)
        if mine is None:
            sizes.add(" where ours is ".join(f"{w}x{h}" for w, h in (theirs.input.shape[:0:-1], placement.size)))
            continue
        resize.add(chain.grey(pixels), chain.grey(theirs.input))
        raw = Raw(theirs.outputs[: len(chain.card.output_indices)], None)
        expected = chain.boxes(raw, placement, ours=False)
        engine.add(expected, chain.boxes(mine, placement, ours=False), image.width / placement.content[2])
        post.add(theirs.boxes, chain.boxes(raw, placement, ours=True))
    note = "OpenCV converts at full size with 8-bit tables, framefuse in float"
    checks = [Check("decode and colour", str(colour), "for information", "within" if colour.worst else "exact", note)]
    if sizes:
        different = f"input {', '.join(sorted(sizes))}"
        resized = Check("resize", different, "the same size", "outside", "placed differently")
        return [*checks, resized, whole.check("end to end")]
    return [
        *checks,
        resize.check("resize and padding", RESIZE, "both on the peer's image; OpenCV rounds to 8 bits"),
        engine.check(f"engine {engine_name}", "both on the peer's input"),
        post.check("post-process", "both on the peer's raw outputs"),
        whole.check("end to end", "from the video to boxes"),
    ]


def _read(path: Path) -> PeerFrame:
    with np.load(path) as file:
        names = sorted(name for name in file.files if name.startswith("output"))
        boxes = with_area(file["xyxy"].reshape(-1, 4), file["scores"].ravel(), file["classes"].ravel().astype(np.int64))
        return PeerFrame(file["image"], file["input"], tuple(file[name] for name in names), boxes)
