"""ONNX without an engine. Files: inputs, outputs and metadata. Graphs: who makes and reads a tensor, weighted layers,
decoding; attributes and values of nodes."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import os_errors_as, replaced, user_cache
from framefuse.common.redact import brief
from framefuse.common.text import lines_of
from framefuse.errors import ModelError

Array = NDArray[Any]
WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators with weights."""
MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")
"""Operators that keep values as they are."""
ORIGINAL, SIZES_OF_ONE, RATIO = "framefuse.original", "framefuse.sizes_of_one", "framefuse.ratio"
"""Metadata of `with_constant`: the path of the model, and the input that is gone."""
FLOATS = (1, 10, 16)
"""FLOAT, FLOAT16 and BFLOAT16 of ONNX."""
SMALL_BYTES = 1024
"""Floats on which shapes depend, such as scales, have no more."""
REMEDY = "pass a complete .onnx file"
QUANTIZE_OPERATORS = ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "ConvInteger", "DynamicQuantizeLinear",
                      "QLinearMatMul")  # fmt: skip
MAGIC = {
    b"PK\x03\x04": "a zip archive, as PyTorch writes checkpoints",
    b"\x80": "a Python pickle, as PyTorch writes checkpoints",
    b"version https://git-lfs": "a git LFS pointer: run `git lfs pull`",
    b"<": "a web page or XML: download the model itself",
    b"\x89HDF": "an HDF5 file, perhaps a Keras model: export it to ONNX first",
}
EXPORTERS = {
    b"ultralytics": "pip install ultralytics; yolo export model={path} format=onnx dynamic=True",
    b"models.yolo": "in the repository that trained it: python export.py --weights {path} --include onnx --dynamic",
    b"code/__torch__": "torch.onnx.export(torch.jit.load('{path}'), (torch.zeros(1, 3, 640, 640),), 'model.onnx')",
    b"rfdetr": "pip install 'rfdetr[onnx]'; RFDETRBase(pretrain_weights='{path}').export()",
}
"""What the bytes of a PyTorch checkpoint contain -> how it is exported."""
ANY_EXPORTER = (
    "export it with the code that trained it; with the network loaded in PyTorch: "
    "torch.onnx.export(network, (torch.zeros(1, 3, 640, 640),), 'model.onnx')"
)


@dataclass(frozen=True)
class TensorFacts:
    """Name, type and shape of an input or output. None in a shape is a free axis; an empty shape is unknown."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape) or "shape not stated"
        return f"{self.name} ({sizes}) {self.dtype}"


@dataclass(frozen=True)
class OnnxFacts:
    path: Path
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    metadata: dict[str, str]


def read_onnx(path: Path) -> OnnxFacts:
    """Inputs, outputs and metadata of an ONNX file; external weights are checked but not loaded.

    Raises:
        ModelError: the file is missing, empty, truncated or not ONNX, or external data is incomplete or outside its
            folder.
    """
    import onnx

    model = _parse(path)
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(path, tensor)
    return OnnxFacts(
        path,
        tuple(map(_facts, inputs_of(model))),
        tuple(_facts(value) for value in model.graph.output),
        {_text(entry.key): _text(entry.value) for entry in model.metadata_props},
    )


def outputs_at(path: Path, shape: tuple[int, ...]) -> tuple[TensorFacts, ...]:
    """The outputs for an input of this shape, by shape inference: exports that are not simplified state no sizes."""
    model = _parse(path)
    for dimension, size in zip(inputs_of(model)[0].type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    for tensor in model.graph.initializer:
        if tensor.data_type in FLOATS and len(tensor.raw_data) > SMALL_BYTES:  # inference copies all of it twice
            tensor.ClearField("raw_data")
    with suppress(Exception):  # it raises unrelated classes; then the outputs stay unknown
        model = with_shapes(model)
    return tuple(_facts(value) for value in model.graph.output)


def inputs_of(model: Any) -> list[Any]:
    """The inputs of a model, without the weights that old exporters list among them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def opset_of(model: Any) -> int:
    """Version of the standard operators of a model; 0 if it has none."""
    return max((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def with_shapes(model: Any) -> Any:
    """The model with all shapes inferred from those of its inputs, which raises unrelated classes. Changes the model
    that is passed: what it states of other shapes goes, because inference does not overwrite the symbols of exports."""
    import onnx

    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _text(value: str | bytes) -> str:
    """A string of a model. Protobuf gives bytes where it is not UTF-8; it is Latin-1 then, as old exporters write."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def external_files(path: Path) -> set[str]:
    """The files with external weights as the model states them; `read_onnx` refuses those outside its folder.

    Raises:
        ModelError: as `read_onnx`.
    """
    return {entry.value for tensor in _tensors(_parse(path).graph) for entry in tensor.external_data
            if entry.key == "location" and entry.value}  # fmt: skip


def load_onnx(path: Path, *, weights: bool = True) -> Any:
    """An ONNX model, with external weights if wanted.

    Raises:
        ModelError: it cannot be read.
    """
    import onnx

    try:
        return onnx.load(path, load_external_data=weights)
    except Exception as error:  # protobuf's and the file system's own classes
        raise ModelError(f"{path} cannot be read as ONNX: {error}", remedy=REMEDY) from error


def model_hash(model: Path) -> str:
    """SHA-256 of a model file and of the files beside it with its weights.

    Raises:
        OSError: one of them cannot be read.
        ModelError: it is named .onnx but cannot be read as ONNX.
    """
    digest = hashlib.sha256(model.read_bytes())
    if model.suffix == ".onnx":
        for name in sorted(external_files(model)):
            digest.update((model.parent / name).read_bytes())
    elif model.suffix == ".xml" and (weights := model.with_suffix(".bin")).exists():  # OpenVINO's
        digest.update(weights.read_bytes())
    return digest.hexdigest()


def with_constant(path: Path, entry: TensorFacts, value: float, note: str) -> Path:
    """A copy of a model in the user's cache, without an input, which has the same value in each run.

    Args:
        entry: that input, (b, n) or (n,).
        note: the metadata that names it: SIZES_OF_ONE or RATIO.

    Raises:
        ModelError: the model cannot be read, or the copy cannot be written.
    """
    import onnx

    remedy = "make room, or set XDG_CACHE_HOME to another folder"
    failing = partial(os_errors_as, ModelError, f"cannot copy {path}", remedy)
    original = str(path.absolute())
    with failing():
        key = f"{model_hash(path)} {original} {entry.name} {value:g}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    copy = user_cache() / "without-input" / digest[:24] / path.name
    if copy.exists():
        return copy
    model = load_onnx(path)
    for name, text in ((ORIGINAL, original), (note, entry.name)):
        model.metadata_props.add(key=name, value=text)
    (found,) = (one for one in model.graph.input if one.name == entry.name)
    model.graph.input.remove(found)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(found.type.tensor_type.elem_type)
    shape = [size or 1 for size in entry.shape]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shape, value, dtype), entry.name))
    with failing():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with replaced(copy, ".onnx") as part:
            onnx.save(model, part)
    return copy


def is_quantised(model: Any) -> bool:
    """Whether an ONNX model is quantised.

    Args:
        model: a `ModelProto`, or a file.

    Raises:
        ModelError: the file cannot be read.
    """
    graph = (_parse(model) if isinstance(model, Path) else model).graph
    return any(node.op_type in QUANTIZE_OPERATORS for node in graph.node)


def plain_words(error: BaseException) -> str:
    """The message of an ONNX Runtime error, without locations in its source."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |(Load model from )?\S* ?failed:(?=\S)", "", lines_of(error)[-1])
    return re.sub(r"/onnxruntime_src/\S+:\d+ .*?\(.*?\) ", "", text)[:300]


class OnnxGraph:
    """A read-only view of a `ModelProto`. Nodes are identified by index."""

    def __init__(self, model: Any) -> None:
        self.nodes: list[Any] = list(model.graph.node)
        self.weights: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            for name in node.output:
                self.producer[name] = number
            for name in reads(node):
                self.readers[name].append(number)

    def name(self, number: int) -> str:
        return str(self.nodes[number].name)

    def before(self, number: int) -> list[int]:
        return [self.producer[name] for name in reads(self.nodes[number]) if name in self.producer]

    def after(self, number: int) -> list[int]:
        return [reader for name in self.nodes[number].output for reader in self.readers[name]]

    def layers(self, *kinds: str) -> list[int]:
        """Nodes of these operators with constant weights, in order."""
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.op_type in kinds and any(name in self.weights for name in node.input[1:2])
        ]

    def network(self) -> list[int]:
        """Nodes with constant weights, without those that decode."""
        return [number for number in self.layers(*WEIGHTED) if not self.decodes(number)]

    def decodes(self, number: int) -> bool:
        """Whether a convolution computes an expectation over a softmax, as YOLOv8 decodes its boxes."""
        sources = self.before(number)
        while len(sources) == 1 and self.nodes[sources[0]].op_type in MOVES:
            sources = self.before(sources[0])
        return any(self.nodes[source].op_type == "Softmax" for source in sources)

    def first(self, layers: list[int]) -> list[int]:
        """The layers that do not depend on another of them."""
        follows = self._reached(layers, self.after, range(len(self.nodes)))
        return [number for number in layers if number not in follows]

    def last(self, layers: list[int]) -> list[int]:
        """The layers that no other of them depends on."""
        precedes = self._reached(layers, self.before, range(len(self.nodes) - 1, -1, -1))
        return [number for number in layers if number not in precedes]

    def up_to(self, layers: list[int]) -> set[int]:
        """The layers and everything that they depend on."""
        return self._reached(layers, self.before, range(len(self.nodes) - 1, -1, -1)) | set(layers)

    def _reached(self, starts: list[int], step: Any, order: range) -> set[int]:
        """Nodes that are one or more steps from the starts, in one pass, because ONNX sorts its nodes topologically."""
        begins, reached = set(starts), set[int]()
        for number in order:
            if number in begins or number in reached:
                reached.update(step(number))
        return reached


def reads(node: Any) -> Iterator[str]:
    """Names that a node reads, including those that its sub-graphs capture."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = {name for part in graph.node for name in part.output}
            inner |= {value.name for value in (*graph.input, *graph.initializer)}
            yield from (name for part in graph.node for name in reads(part) if name not in inner)
            yield from (value.name for value in graph.output if value.name not in inner)


def evaluate(nodes: list[Any], values: dict[str, Array], outputs: list[str], model: Any) -> list[Array]:
    """Run nodes of a model, for its opsets, with onnx's reference evaluator, which raises errors of any class for what
    it cannot run."""
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    if [node.op_type for node in nodes] == ["Constant"] and (value := attribute(nodes[0], "value", None)) is not None:
        return [numpy_helper.to_array(value)]  # much faster, and most of what is folded
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [ValueInfoProto(name=name) if name else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
         for name in outputs],
    )  # fmt: skip
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [np.asarray(value) for value in ReferenceEvaluator(part).run(outputs, values)]


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node, text as str; `default` if it is absent."""
    from onnx import helper

    value = next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)
    return value.decode() if isinstance(value, bytes) else value


def _parse(path: Path) -> Any:
    import onnx
    from onnx.defs import onnx_opset_version

    with os_errors_as(ModelError, f"{path} cannot be read", REMEDY):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ModelError(f"there is no model {path}", remedy="check the path") from None
    if not data:
        raise ModelError(f"{path} is empty (0 bytes)", remedy=REMEDY)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # DecodeError, of a class that depends on the protobuf implementation
        raise _not_onnx(path, data) from error
    if not model.ir_version or not model.opset_import or not model.graph.output:
        raise _not_onnx(path, data, ": it has no graph with outputs")
    if strange := next((name for name in _names(model.graph) if isinstance(name, bytes)), None):
        message = f"{path} has a name in its graph that is not UTF-8: {brief(strange)}"
        raise ModelError(message, remedy="export the model again, with names of ASCII characters")
    if (opset := opset_of(model)) > onnx_opset_version():
        message = f"{path} has opset {opset}; the newest supported one is {onnx_opset_version()}"
        raise ModelError(message, remedy="export it again with opset 17")
    return model


def _not_onnx(path: Path, data: bytes, why: str = "") -> ModelError:
    kind = next((f"not ONNX but {kind}" for head, kind in MAGIC.items() if data.startswith(head)), None)
    kind = kind or f"not ONNX, or truncated ({len(data)} bytes, starting with {data[:8].hex(' ')})"
    remedy = REMEDY
    if path.suffix in (".pt", ".pth", ".ckpt") or data.startswith(b"PK"):
        remedy = next((how.format(path=path) for mark, how in EXPORTERS.items() if mark in data), ANY_EXPORTER)
    elif path.suffix.lower() in (".mp4", ".mkv", ".mov", ".avi", ".ts", ".jpg", ".jpeg", ".png"):
        remedy = "the source comes first, then the model: framefuse predict SOURCE MODEL"
    return ModelError(f"{path} is {kind}{why}", remedy=remedy)


def _names(graph: Any) -> Iterator[str | bytes]:
    """Names of the tensors, nodes and operators of a graph."""
    for one in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield one.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor that may have external data: initializers and attributes, also in sub-graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _check_external(path: Path, tensor: Any) -> None:
    """Require external data to be complete and in the model's folder, because a model must not read other files."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, folder = entries.get("location", ""), path.resolve().parent
    written = PureWindowsPath(location)  # splits at / and \
    try:
        target = (folder / location).resolve()
        present = target.is_file()
        start, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except (OSError, ValueError, RuntimeError) as error:  # an impossible file name, or invalid numbers
        why = getattr(error, "strerror", None) or str(error)[:100]
        message = f"{path} has invalid external data: tensor {brief(tensor.name)} in {brief(location)}: {why}"
        raise ModelError(message, remedy="export the model again") from error
    if not location or written.anchor or ".." in written.parts or not target.is_relative_to(folder):
        message = f"{path} keeps weights outside its folder: tensor {brief(tensor.name)} is in {brief(location)}"
        raise ModelError(message, remedy="put the model and its external data into one folder, without links")
    if not present:
        message = f"{path} keeps tensor {brief(tensor.name)} in {brief(location)}, but there is no such file"
        raise ModelError(message, remedy="copy the external data next to the model")
    size, end = target.stat().st_size, start + length
    if start < 0 or length < 0 or end > size:
        message = f"{target} is truncated: tensor {brief(tensor.name)} ends at byte {end}, the file at {size}"
        raise ModelError(message, remedy="copy the external data again")


def _facts(value: Any) -> TensorFacts:
    import onnx

    tensor = value.type.tensor_type
    types = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    dtype = types.get(tensor.elem_type, f"type {tensor.elem_type}")
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    return TensorFacts(value.name, {"float": "float32"}.get(dtype, dtype), shape)
