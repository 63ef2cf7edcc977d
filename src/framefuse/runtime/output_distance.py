"""How far the outputs of an engine are from FP32 on the CPU, on two frames of the synthetic world.

python -m framefuse.runtime.output_distance
stdin:  a pickled `Subject`
stdout: its `Verdict` as JSON, from the cache or made now; why there is none is a line on stderr
"""

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from framefuse.cuda import device as gpus
from framefuse.engines import Engine, EngineOptions, open_engine
from framefuse.engines.cache import EngineCache
from framefuse.engines.cudnn.network import Head, decode
from framefuse.errors import CapabilityError, FramefuseError, HostMemoryError
from framefuse.kernels.boxes.call import HEAD
from framefuse.kernels.boxes.reference import floats
from framefuse.models.card import Card
from framefuse.models.fp16 import to_fp32
from framefuse.models.onnx_file import is_quantised, load_onnx
from framefuse.models.openvino_file import SUFFIXES
from framefuse.prediction import Array
from framefuse.runtime.output_check import FOLDER, FRAMES, NO_REFERENCE, SOURCE, SUFFIX, Subject, Verdict, limit_of
from framefuse.sources import SourceOptions, open_spread


def check(subject: Subject, engine: Engine | None = None, *, again: bool = False) -> Verdict:
    """The verdict, from the cache or made now. A process that makes the same one is waited for.

    Args:
        engine: that of the subject, if it is open.
        again: whether to measure even if the verdict is known.

    Raises:
        CapabilityError: there is nothing to compare with.
        FramefuseError: the engine cannot be opened or run.
    """
    if (reference := subject.reference) is None:
        raise CapabilityError(NO_REFERENCE, remedy="install it, or check another engine")

    def build(path: Path) -> None:
        path.write_text(json.dumps(asdict(compare(subject, reference, engine))))

    with gpus.current(subject.gpu, "check the outputs"):
        cache, key = EngineCache(FOLDER), subject.key(reference)
        with suppress(OSError):  # of a folder that cannot be written
            if again and (known := cache.find(key, suffix=SUFFIX)):
                known.path.unlink()
            return Verdict.read(cache.get(key, build, suffix=SUFFIX).path)
        return compare(subject, reference, engine)


def compare(subject: Subject, reference: str, engine: Engine | None = None) -> Verdict:
    """Run both on the frames; the GPU is the current one.

    Args:
        engine: that of the subject, if it is open.

    Raises:
        FramefuseError: the engine cannot be opened or run.
    """
    card, count = subject.card, -(-FRAMES // subject.batch)
    images = model_inputs(card, subject.height, subject.width)
    rows = np.arange(count * subject.batch) % FRAMES
    with nullcontext(engine) if engine else closing(subject.open()) as checked:
        found = outputs_of(checked, images[rows].reshape(count, subject.batch, *images.shape[1:]))
        precision = checked.precision  # which some engines know only now
    what = f"engine {subject.engine} in {precision}"
    quantised = card.path.suffix not in SUFFIXES and is_quantised(card.path)
    against = f"{reference} in {'int8' if quantised else 'fp32'} on the CPU"
    try:
        expected = _reference_outputs(card, reference, images)
    except HostMemoryError:  # another time there may be enough
        raise
    except FramefuseError as error:
        return Verdict(what, against, failed=f"fails: {error.message}")
    pairs = [(found[index], expected[index][rows]) for index in card.output_indices]
    whole, exact = (parts(card, side) for side in zip(*pairs, strict=True))
    distances = {name: distance(whole[name], values) for name, values in exact.items()}
    return Verdict(what, against, distances, limit_of(precision))


def model_inputs(card: Card, height: int, width: int) -> Array:
    """The frames as the model sees them: (FRAMES, 3, height, width), in the number format of its input."""
    spec = replace(card.preprocess, height=height, width=width, rectangular=False)
    images = np.empty((FRAMES, 3, height, width), card.input_dtype)
    with closing(open_spread(SOURCE, FRAMES, SourceOptions())) as source:
        for frame, row in zip(source, images, strict=True):
            spec(frame, row, spec.place(frame.width, frame.height))
    return images


def outputs_of(engine: Engine, batches: Array) -> list[Array]:
    """The outputs of the model for batches (n, batch, 3, height, width), joined along the images."""
    _, batch, _, height, width = batches.shape
    pool = engine.request_pool(batch, height, width, 1)
    found: list[list[Array]] = []
    with closing(pool):
        slot = pool.acquire()
        assert slot is not None
        for images in batches:
            if images.dtype == np.uint8:
                slot.input[...] = images if slot.memory_format == "nchw" else images.transpose(0, 2, 3, 1)
            else:
                slot.write(images)
            pool.submit(slot)
            pool.wait(slot)
            outputs = [floats(output) for output in slot.outputs]
            found.append([_decoded(outputs, height, width)] if slot.layout == HEAD else outputs)
        pool.release(slot)
    return [np.concatenate(outputs) for outputs in zip(*found, strict=True)]


def parts(card: Card, outputs: Sequence[Array]) -> dict[str, Array]:
    """The outputs that post-processing reads, in parts whose numbers are of one kind; boxes in pixels would hide what
    happens to scores. What models with queries find is in any order, so their numbers are sorted."""
    found = dict(zip(card.outputs, outputs, strict=True))
    name, first = card.outputs[0], outputs[0]
    if card.layout in ("yolov5", "yolox", "end2end") or (card.layout == "detr" and len(outputs) == 1):
        found |= {f"{name} (boxes)": first[..., :4], f"{name} (scores)": first[..., 4:]}
        del found[name]
    elif card.layout == "yolov8":
        found |= {f"{name} (boxes)": first[:, :4], f"{name} (scores)": first[:, 4 : first.shape[1] - card.extra]}
        found |= {f"{name} (others)": first[:, first.shape[1] - card.extra :]} if card.extra else {}
        del found[name]
    if card.layout in ("end2end", "detr"):
        found = {name: np.sort(values, 1) if values.ndim > 1 else values for name, values in found.items()}
    return found


def distance(found: Array, expected: Array) -> float:
    """Root mean square of the difference, divided by that of `expected`; infinite where that is not a number."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    off, size = (float(np.linalg.norm(values.ravel().astype(np.float64))) for values in (found - expected, expected))
    return off / max(size, 1e-12)


def _reference_outputs(card: Card, name: str, images: Array) -> list[Array]:
    """Those of FP32 on the CPU; the Q/DQ nodes of a quantised model are computed as the file says."""
    size = 1 if card.dynamic_batch else card.batch
    with tempfile.TemporaryDirectory() as folder:
        path = card.path
        if name == "onnxruntime" and card.path.suffix == ".onnx":  # which computes in the types of the file
            path = _in_fp32(card.path, Path(folder))
        asked = EngineOptions("cpu", "fp32" if name == "openvino" else "auto", streams=1, threads=1)
        with closing(open_engine(name, path, asked)) as engine:
            batches = np.repeat(images[:, None], size, 1)
            return [values[::size] for values in outputs_of(engine, batches)]


def _in_fp32(path: Path, folder: Path) -> Path:
    """A copy of a model in FP16, in FP32; any other model itself."""
    import onnx

    half = onnx.TensorProto.FLOAT16
    if all(tensor.data_type != half for tensor in load_onnx(path, weights=False).graph.initializer):
        return path
    copy = folder / path.name
    onnx.save(to_fp32(load_onnx(path)), copy)
    return copy


def _decoded(logits: Sequence[Array], height: int, width: int) -> Array:
    """The output of a YOLOv8, (batch, 4 + classes, anchors), of the logits that an engine gives in its place."""
    batch, *_, bins = logits[0].shape
    levels = tuple((values.shape[1], values.shape[2]) for values in logits[::2])
    head = Head((), (), bins // 4, logits[1].shape[-1], levels)
    sides, scores = (
        np.concatenate([values.reshape(batch, -1, values.shape[-1]) for values in logits[start::2]], 1)
        for start in (0, 1)
    )
    pairs = zip(sides.swapaxes(1, 2), scores.swapaxes(1, 2), strict=True)
    return np.stack([decode(*pair, head, height, width) for pair in pairs])


def main() -> None:
    """Check one subject."""
    with suppress(OSError):  # if memory gets short, this process goes before the run
        Path("/proc/self/oom_score_adj").write_text("1000")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answer
    try:
        verdict = check(pickle.load(sys.stdin.buffer))
    except FramefuseError as error:
        sys.exit(error.message)
    print(json.dumps(asdict(verdict)), file=answers, flush=True)


if __name__ == "__main__":
    main()
