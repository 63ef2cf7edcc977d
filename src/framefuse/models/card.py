"""Card: a model's preprocessing, output layout and classes, read from the ONNX file or a YAML file beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from framefuse.common.keypoints import COCO_KEYPOINTS, COCO_SKELETON
from framefuse.errors import CardError, ModelError, UsageError
from framefuse.models import layouts
from framefuse.models.cardfile import CardFile, check_names, parse_literal, read_card_file
from framefuse.models.layouts import UNDECODED, WHOLE, Activation, BoxUnits, OutputLayout, Task
from framefuse.models.onnx_file import (
    ORIGINAL,
    RATIO,
    SIZES_OF_ONE,
    OnnxFacts,
    TensorFacts,
    outputs_at,
    read_onnx,
    with_constant,
)
from framefuse.models.openvino_file import METADATA_FILE, SUFFIXES, read_openvino, run_once
from framefuse.models.states import state_pairs
from framefuse.preprocess import Fit, Preprocess

T = TypeVar("T")

CALIBRATION_KEY = "framefuse.calibration"
"""Metadata entry of an ONNX that says what its INT8 ranges come from."""
INPUT_DTYPES = ("float32", "float16", "uint8")
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
"""Means and standard deviations of ImageNet, in grey levels."""
MATTING: dict[str, Any] = {"task": "semantic", "outputs": ["pha"], "names": {0: "person"}, "imgsz": (288, 512)}
"""What is assumed of Robust Video Matting, whose output `pha` is the matte of a person."""
SEEN = 512
"""Longest side at which its network looks; what it is given may be larger (`downsample_ratio`)."""


@dataclass(frozen=True)
class Card:
    """Everything that the pipeline needs to know about a model, and where each fact comes from.

    Output layouts (nc classes, N anchors, K queries; boxes in model pixels unless said otherwise):
        yolov5:  (b, N, 5 + nc)  cx cy w h objectness scores
        yolov8:  (b, 4 + nc, N)  cx cy w h scores
        end2end: (b, K, 6)       x1 y1 x2 y2 score class
        Of these three, anchors and queries have more values after their classes with the tasks segment (coefficients
        of masks, whose prototypes are a second output (b, n, h, w)), pose (x and y of each keypoint, perhaps a
        confidence) and obb (an angle in radians; boxes of end2end are cx cy w h then).
        detr:    two outputs, boxes (b, K, 4) cx cy w h in 0..1 and logits (b, K, nc); or three: labels (b, K),
                 boxes (b, K, 4) x1 y1 x2 y2, scores (b, K); or one (b, K, 4 + nc): cx cy w h in 0..1, probabilities
        yolox:   (b, N, 5 + nc)  as yolov5, but x and y in cells, w and h as logarithms, N one for each cell
        nanodet: (b, N, nc + 32) scores, then distances to the four sides as logits of eight bins
        centerface, centernet: heat map, sizes, offsets, of centerface also landmarks: (b, n, h, w) each, see
                 `postprocess.decoders`
        semantic: (b, nc, h, w)  scores of each class, background included, or with one class a matte or its logit;
                 h and w are those of the input, or the same fraction of both (task: semantic)
        classify: (b, nc)        scores of each class (task: classify)
    """

    path: Path
    preprocess: Preprocess
    layout: OutputLayout
    names: Mapping[int, str]
    """Class number -> name; empty if neither names nor their number are known (end2end)."""
    input_name: str
    outputs: tuple[str, ...]
    """Names of the outputs that post-processing reads, in the order of the layout."""
    dynamic_size: bool
    """Whether height and width are free (multiples of the stride)."""
    dynamic_batch: bool
    batch: int = 1
    """The batch size, if it is fixed."""
    task: Task = "detect"
    origin: Mapping[str, str] = field(default_factory=dict)
    """Source of each fact: "onnx metadata", "card scout-n.yaml", "default of layout yolov8"."""
    output_indices: tuple[int, ...] = (0,)
    """Indices of `outputs` among all outputs of the ONNX model."""
    activation: Activation = "none"
    """Activation that post-processing applies to scores (detr: sigmoid unless the card says otherwise)."""
    box_units: BoxUnits = "pixels"
    """Units of boxes: model pixels, or 0..1 of the model input."""
    input_dtype: str = "float32"
    """Type of the ONNX input: float32, float16 or uint8."""
    extra: int = 0
    """Values of an anchor or query after its classes."""
    keypoints: tuple[int, int] | None = None
    """Task pose: number of keypoints, and values of each: x, y, and perhaps a confidence."""
    keypoint_names: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    """Pairs of keypoints that a line connects."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Of a recurrent model: input -> the output that it is in the next frame."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Other information: licence, source, training, calibration. Licence and calibration may also come from the ONNX
    metadata."""

    @property
    def boxes_only(self) -> bool:
        """Whether its outputs are boxes and nothing else, decoded by the model."""
        return self.task == "detect" and self.layout not in UNDECODED

    @property
    def synthetic(self) -> bool:
        """Whether it was trained on the synthetic world alone."""
        return "world" in self.about

    @property
    def calibration(self) -> str:
        """What the ranges of an INT8 model come from; empty: not known."""
        return str(self.about.get("calibration", ""))

    @property
    def class_count(self) -> int:
        return len(self.names)

    def nearest_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width rounded to multiples of the stride, for models of free size."""
        stride = self.preprocess.stride
        return max(1, round(height / stride)) * stride, max(1, round(width / stride)) * stride

    def check_outputs(self, outputs: Sequence[NDArray[Any]], layout: str | None = None) -> None:
        """Compare the outputs of a model with the card, because an ONNX file may state wrong shapes.

        Args:
            outputs: in the order of the layout.
            layout: of `outputs`, if the engine's differs from the model's.

        Raises:
            CardError: the outputs have another number of classes, or none.
        """
        shapes = [output.shape for output in outputs]
        # OpenVINO makes scalars of outputs without values.
        found = 0 if () in shapes else layouts.count_classes(layout or self.layout, shapes, self.activation, self.extra)
        if found is not None and (found < 1 or (self.names and found != self.class_count)):
            stated = f"{self.path.name} states {self.class_count} classes ({self.origin.get('names', 'names')})"
            stated = stated if self.names else f"{self.path.name} needs at least one class"
            message = f"{stated}, but its outputs have {found} ({self.layout}: {', '.join(map(str, shapes))})"
            raise CardError(message, remedy=f"correct names or layout in the card {self.path.with_suffix('.yaml')}")


class _Facts:
    """Looks facts up in the card file, then the ONNX metadata, then defaults; `origin` records which one applied."""

    def __init__(self, card: CardFile, card_name: str, metadata: Mapping[str, str], where: str) -> None:
        self.card, self.card_name, self.metadata, self.where = card, card_name, metadata, where
        self.origin: dict[str, str] = {}
        self.assumed: Mapping[str, Any] = {}
        """Values of keys that neither the card nor the metadata has."""

    def find(self, key: str) -> Any:
        """The value from the card file or the metadata; None if neither has it."""
        value = getattr(self.card, key)
        if value is not None:
            self.origin[key] = f"card {self.card_name}"
        elif key in METADATA and METADATA[key][0] in self.metadata:
            name, read = METADATA[key]
            value = read(self.metadata[name])
            if value is not None:
                self.origin[key] = f"{self.where} {name}"
        if value is None and key in self.assumed:
            value, self.origin[key] = self.assumed[key], "assumed: Robust Video Matting, by its inputs and outputs"
        return value

    def get(self, key: str, default: T, why: str) -> T:
        value = self.find(key)
        if value is None:
            self.origin[key] = why
            return default
        return value  # type: ignore[no-any-return]  # CardFile and METADATA have checked the type


def _metadata(key: str, text: str) -> Any:
    """A value of the ONNX metadata, of the type that the card file has."""
    value = parse_literal(key, text)
    try:
        return getattr(CardFile(**{key: value}), key)
    except ValidationError as error:
        message = f"onnx metadata {key} = {text!r} is not valid: {error.errors()[0]['msg']}"
        raise CardError(message, remedy=f"add {key} to the card: {CardFile.model_fields[key].description}") from error


METADATA: dict[str, tuple[str, Callable[[str], Any]]] = {
    "names": ("names", lambda text: check_names(parse_literal("names", text), "onnx metadata")),
    "imgsz": ("imgsz", partial(_metadata, "imgsz")),
    "stride": ("stride", partial(_metadata, "stride")),
    "task": ("task", lambda text: _metadata("task", repr(text))),
    "keypoints": ("kpt_shape", partial(_metadata, "keypoints")),
    "layout": ("end2end", lambda text: "end2end" if text.lower() == "true" else None),
}
"""Card key -> the metadata key that exporters write, and its parser, which may return None."""


def read_facts(model: Path) -> OnnxFacts:
    """What a file says of its inputs and outputs. ModelError, CardError: as `read_onnx` and `read_openvino`."""
    return read_openvino(model) if model.suffix in SUFFIXES else read_onnx(model)


def read_card(model: Path) -> Card:
    """Read a model's card from its ONNX metadata and shapes and the YAML file beside it (model.yaml), which takes
    precedence.

    Raises:
        ModelError: the file is missing, not ONNX (or of SUFFIXES), truncated, or has external data outside its folder.
        CardError: a fact is unknown or wrong; the remedy names the key to add to the YAML file.
    """
    model = Path(model)
    onnx_facts = read_facts(model)
    card_path = Path(onnx_facts.metadata.get(ORIGINAL, model)).with_suffix(".yaml")
    card = read_card_file(card_path)
    if model.suffix not in SUFFIXES and (copy := _with_one_image(model, onnx_facts, card)):
        model, onnx_facts = copy, read_facts(copy)
    where = METADATA_FILE if model.suffix in SUFFIXES else "onnx metadata"
    facts = _Facts(card, card_path.name, onnx_facts.metadata, where)
    try:
        return _assemble(model, onnx_facts, facts)
    except CardError as error:
        error.message = f"{model.name}: {error.message}"
        error.remedy = f"{error.remedy} ({card_path})" if error.remedy else None
        raise
    except UsageError as error:  # Preprocess checks the ranges of its own fields
        raise CardError(f"{model.name}: {error.message}", remedy=f"correct it in {card_path}") from error


def _assemble(model: Path, onnx_facts: OnnxFacts, facts: _Facts) -> Card:
    states = state_pairs(*([one.name for one in side] for side in (onnx_facts.inputs, onnx_facts.outputs)))
    image = _image_input(onnx_facts, states)
    outputs = tuple(one for one in onnx_facts.outputs if one.name not in states.values())
    if states and "pha" in {one.name for one in outputs}:
        facts.assumed = MATTING
    stated_layout, task = facts.find("layout"), facts.find("task")
    if stated_layout in WHOLE and task is None:
        task = stated_layout
    elif None not in (task, stated_layout) and {task, stated_layout} & set(WHOLE) and task != stated_layout:
        message = f"task {task!r} and layout {stated_layout!r} contradict each other"
        raise CardError(message, remedy="leave one of them out")

    height, width = _input_size(image, facts)
    names = facts.find("names")
    units: BoxUnits | None = facts.find("box_units")
    if units is None and (sizes := onnx_facts.metadata.get(SIZES_OF_ONE)):
        units, facts.origin["box_units"] = "relative", f"onnx input {sizes}, which is 1"
    resolve = partial(
        layouts.resolve,
        size=(height, width),
        class_count=None if names is None else len(names),
        task=task,
        layout=task if task in WHOLE else stated_layout,
        wanted=facts.find("outputs"),
        activation=facts.find("activation"),
        box_units=units,
        keypoints=facts.find("keypoints"),
        probe=partial(_boxes_are_pixels, model, (image.shape[0] or 1, 3, height, width), image.dtype),
    )
    try:
        layout = resolve(outputs)
    except CardError:
        if model.suffix in SUFFIXES or states:
            raise
        inferred = outputs_at(model, (image.shape[0] or 1, 3, height, width))
        if inferred == onnx_facts.outputs or not all(map(_agree, onnx_facts.outputs, inferred)):
            raise
        layout = resolve(inferred)  # whose errors name sizes
    facts.origin = {**layout.origin, **facts.origin}
    if names is None:
        names = {number: str(number) for number in range(layout.class_count or 0)}
        facts.origin["names"] = "not stated: class numbers"

    default = f"default of layout {layout.name}"
    dynamic_size = image.shape[2] is None and image.shape[3] is None
    fits: dict[OutputLayout, Fit] = {"detr": "stretch", "classify": "crop", "yolox": "corner"}
    fits |= dict.fromkeys(("nanodet", "centerface", "centernet"), "stretch")
    fit: Fit = facts.get("fit", fits.get(layout.name, "letterbox"), default)
    uint8 = image.dtype == "uint8"
    free = facts.get(
        "rect", dynamic_size and fit in ("letterbox", "corner"), "default: yes if height and width are free"
    )
    std, why = (1.0 if uint8 else 255.0,) * 3, {"std": "default of uint8 input"} if uint8 else {}
    usual = dict(stride=32, interpolation="linear", pad_value=114.0, mean=(0.0,) * 3, std=std, channel_order="rgb")
    if layout.name == "nanodet":  # of ImageNet, for channels in the order of OpenCV
        usual |= {key: tuple(reversed(values)) for key, values in IMAGENET.items()} | {"channel_order": "bgr"}
    elif layout.name in ("yolox", "centerface"):  # grey levels as they are
        usual |= {"std": (1.0,) * 3, "channel_order": "bgr" if layout.name == "yolox" else "rgb"}
    elif layout.name == "classify":
        usual["interpolation"] = "antialias"
        if not uint8 and task is None:  # the frameworks that state a task have their own
            usual |= IMAGENET
            why = dict.fromkeys(IMAGENET, "assumed: that of ImageNet, as torchvision's classifiers")
    options: dict[str, Any] = {key: facts.get(key, value, why.get(key, default)) for key, value in usual.items()}
    preprocess = Preprocess(width=width, height=height, fit=fit, rectangular=free, **options)
    if preprocess.rectangular and not dynamic_size:
        raise CardError(f"rect: true, but the input is fixed at {width}x{height}", remedy="remove rect from the card")
    batch, about_keys = image.shape[0], {"licence": "license", "calibration": CALIBRATION_KEY}
    stated = {ours: text for ours, key in about_keys.items() if (text := onnx_facts.metadata.get(key))}
    return Card(
        path=model,
        preprocess=preprocess,
        layout=layout.name,
        names=names,
        input_name=image.name,
        outputs=layout.outputs,
        dynamic_size=dynamic_size,
        dynamic_batch=batch is None,
        batch=batch or 1,
        task=layout.task,
        origin={"input": "onnx input shape", "batch": "onnx input shape", **facts.origin},
        output_indices=layout.indices,
        activation=layout.activation,
        box_units=layout.box_units,
        input_dtype=image.dtype,
        extra=layout.extra,
        states=states,
        **_skeleton(facts, layout) if layout.task == "pose" else {},
        about=stated | (facts.card.about or {}),
    )


def _boxes_are_pixels(model: Path, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether the boxes of a model with one output (b, anchors, 5 + nc) are decoded, from one run: then no side is
    negative, and most exceed any logarithm."""
    (rows,) = run_once(model, shape, dtype).values()
    sides = rows[0, :, 2:4]
    return bool((sides >= 0).all() and np.median(sides) > 4)


def _skeleton(facts: _Facts, layout: layouts.Resolved) -> dict[str, Any]:
    """What the card says about keypoints. CardError: the names or the skeleton do not fit their number."""
    count, values = facts.find("keypoints") or (layout.extra // 2, 2)
    person = count == len(COCO_KEYPOINTS)
    default = "default of 17 keypoints: people as in COCO"
    names = facts.get("keypoint_names", COCO_KEYPOINTS if person else [], default if person else "not stated")
    lines = facts.get("skeleton", COCO_SKELETON if person else [], default if person else "not stated")
    if names and len(names) != count:
        message = f"{len(names)} keypoint_names are given for {count} keypoints"
        raise CardError(message, remedy="correct keypoint_names or keypoints in the card")
    if max((end for line in lines for end in line), default=0) >= count:
        raise CardError(f"the skeleton has a keypoint beyond {count - 1}", remedy="correct skeleton in the card")
    return {"keypoints": (count, values), "keypoint_names": tuple(names), "skeleton": tuple(map(tuple, lines))}


def _agree(stated: TensorFacts, inferred: TensorFacts) -> bool:
    """Whether an inferred shape only fills in what is not stated."""
    return not stated.shape or (
        len(stated.shape) == len(inferred.shape)
        and all(one in (None, other) for one, other in zip(stated.shape, inferred.shape, strict=True))
    )


def _with_one_image(model: Path, facts: OnnxFacts, card: CardFile) -> Path | None:
    """A copy of a model without an input that the pipeline need not set; None: it has none."""
    if sizes := _size_input(facts):  # what the model multiplies by them stays relative
        return with_constant(model, sizes, 1.0, SIZES_OF_ONE)
    if ratio := _ratio_input(facts):
        return with_constant(model, ratio, min(1.0, SEEN / max(card.imgsz or MATTING["imgsz"])), RATIO)
    return None


def _size_input(facts: OnnxFacts) -> TensorFacts | None:
    """The one of two inputs, (b, 2), that by its name takes the sizes of the images, by which boxes are multiplied."""
    sizes = [one for one in facts.inputs if "size" in one.name.lower() and one.shape[1:] == (2,)]
    return sizes[0] if len(sizes) == 1 and len(facts.inputs) == 2 else None


def _ratio_input(facts: OnnxFacts) -> TensorFacts | None:
    """The input of one number, beside image and states, that says how much smaller the network sees the image."""
    numbers = [one for one in facts.inputs if one.shape in ((), (1,)) and one.dtype in ("float32", "float16")]
    ratios = [one for one in numbers if "ratio" in one.name.lower()]
    return ratios[0] if len(ratios) == 1 and len(facts.inputs) > 2 else None


def _image_input(facts: OnnxFacts, states: Mapping[str, str]) -> TensorFacts:
    """The first input, (b, 3, h, w); the others are states."""
    listed = ", ".join(map(str, facts.inputs)) or "none"
    if len(facts.inputs) != 1 + len(states) or facts.inputs[0].name in states:
        message = f"{facts.path.name} has {len(facts.inputs)} inputs, expected one image: {listed}"
        raise ModelError(message, remedy="export the model with a single image input (batch, 3, height, width)")
    image = facts.inputs[0]
    if len(image.shape) != 4 or image.shape[1] != 3:
        message = f"input {image} of {facts.path.name} is not (batch, 3, height, width)"
        raise ModelError(message, remedy="export the model for RGB images in NCHW order")
    if image.dtype not in INPUT_DTYPES:
        message = f"input {image} of {facts.path.name} is {image.dtype}, expected one of {', '.join(INPUT_DTYPES)}"
        raise ModelError(message, remedy="export the model with a float32 input")
    return image


def _input_size(image: TensorFacts, facts: _Facts) -> tuple[int, int]:
    """Height and width: fixed in the ONNX file, else from the card."""
    fixed = image.shape[2:]
    stated = facts.find("imgsz")
    if stated is None:
        if None in fixed:
            message = f"input {image} has a free size, and its training size is not stated"
            raise CardError(message, remedy="add imgsz: 640 (or imgsz: [height, width]) to the card")
        facts.origin["imgsz"] = "onnx input shape"
        return int(fixed[0] or 0), int(fixed[1] or 0)
    for axis, known, wanted in zip(("height", "width"), fixed, stated, strict=True):
        if known is not None and known != wanted:
            message = f"imgsz {list(stated)} says {axis} {wanted}, but the model's input is fixed at {known}"
            remedy = f"set imgsz: {[int(v or w) for v, w in zip(fixed, stated, strict=True)]} in the card"
            raise CardError(message, remedy=remedy)
    return stated[0], stated[1]


__all__ = ["Activation", "BoxUnits", "Card", "OutputLayout", "read_card"]
