"""Lowers convolutions to INT8 as a static Q/DQ graph, which every engine reads; uses onnxruntime.quantization.

The placement of Q/DQ nodes decides speed and accuracy:
- on inputs and weights of convolutions only: a node between a convolution and its SiLU (x * sigmoid(x)) would keep
  engines from fusing them, and cost a third of the speed;
- weights have per-channel scales, symmetric; activations have per-tensor scales, from percentiles over real frames;
- a concatenation is quantised once, after it, and residual sums stay in floating point, so that parts of different
  ranges share a scale only where they must;
- stem, head and decoding stay in floating point: boxes in 0..640 and scores in 0..1 have no common scale, and the first
  and last layers cost little time but most of the accuracy.
"""

import contextlib
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framefuse.common.ort import cpu_session, onnxruntime
from framefuse.errors import ModelError
from framefuse.models.onnx_file import QUANTIZE_OPERATORS, WEIGHTED, OnnxGraph, opset_of, plain_words

Calibration = Literal["percentile", "entropy", "minmax"]
PERCENTILE = 99.999
BINS = 2048
MIN_OPSET = 11
FRAMES_PER_UPDATE = 4
"""Frames per update of the histograms, because their activations are all in memory."""


def prepare(path: Path) -> Any:
    """Load a model for lowering: opset 13 or later, constants folded, batch normalisation fused into convolutions.

    Raises:
        ModelError: it is already lowered, its opset is unsupported, or ONNX Runtime cannot load it.
        CapabilityError: the extra `build` is not installed.
    """
    import onnx
    from onnx.defs import onnx_opset_version

    ort = onnxruntime("build")
    model = onnx.load(path)
    opset = opset_of(model)
    if found := {node.op_type for node in model.graph.node} & set(QUANTIZE_OPERATORS):
        message = f"{path} is quantised already: it has {', '.join(sorted(found))} nodes"
        raise ModelError(message, remedy="build from the FP32 model")
    fp16_weights = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16]
    if any(len(tensor.dims) > 1 for tensor in fp16_weights):
        raise ModelError(f"{path} has FP16 weights already", remedy="build from the FP32 model")
    if not MIN_OPSET <= opset <= onnx_opset_version():
        message = f"{path} has opset {opset}; {MIN_OPSET} to {onnx_opset_version()} are supported"
        raise ModelError(message, remedy="export it again with opset 17")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # only standard ONNX operators
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        try:
            if opset < 13:  # per-channel scales need opset 13
                model = onnx.version_converter.convert_version(model, 13)
            cpu_session(ort, model.SerializeToString(), options)
            prepared = onnx.shape_inference.infer_shapes(onnx.load(options.optimized_model_filepath))
        except Exception as error:  # converter, shape inference and ONNX Runtime raise unrelated classes
            message = f"{path} (opset {opset}) cannot be prepared: {plain_words(error)}"
            remedy = "export it again with opset 17 and operators that ONNX Runtime supports"
            raise ModelError(message, remedy=remedy) from error
    names: set[str] = set()
    for node in prepared.graph.node:  # layers are identified by name
        if not node.name or node.name in names:
            node.name = f"{node.op_type}:{node.output[0]}"
        names.add(node.name)
    used = {node.domain for node in prepared.graph.node}
    domains = [entry for entry in prepared.opset_import if entry.domain in used or not entry.domain]
    del prepared.opset_import[:]
    prepared.opset_import.extend(domains)
    del prepared.metadata_props[:]
    prepared.metadata_props.extend(model.metadata_props)
    return prepared


def plan_int8(model: Any) -> tuple[list[str], dict[str, str]]:
    """Names of the convolutions to quantise, in order, and the other layers with weights -> why they are not.

    Raises:
        ModelError: there is nothing to quantise.
    """
    graph = OnnxGraph(model)
    convolutions = graph.layers("Conv")
    kept = {number: "decoding: an expectation over a softmax" for number in convolutions if graph.decodes(number)}
    network = [number for number in convolutions if number not in kept]
    kept |= dict.fromkeys(graph.first(network), "stem: reads the image")
    kept |= dict.fromkeys(graph.last(network), "head: its values are decoded")
    for number in graph.layers(*WEIGHTED):
        if number not in convolutions:
            kept[number] = f"{graph.nodes[number].op_type}: only convolutions are quantised"
    chosen = [graph.name(number) for number in network if number not in kept]
    if not chosen:
        message = f"the model has {len(convolutions)} convolutions, none of them between stem and head"
        raise ModelError(message, remedy="INT8 gains nothing here; use the model as it is")
    return chosen, {graph.name(number): kept[number] for number in sorted(kept)}


def calibrate(model: Any, input_name: str, batches: Iterable[NDArray[Any]], method: Calibration) -> Any:
    """Ranges of all inputs of convolutions over real frames, as `TensorsData` of onnxruntime.quantization.

    Args:
        batches: model inputs (1, 3, h, w).

    Raises:
        ModelError: a tensor is constant, NaN or infinite on the frames.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    kinds = {
        "percentile": (CalibrationMethod.Percentile, {"num_bins": BINS, "percentile": PERCENTILE}),
        "entropy": (CalibrationMethod.Entropy, {"num_bins": 512, "num_quantized_bins": 128}),
        "minmax": (CalibrationMethod.MinMax, {}),
    }
    kind, options = kinds[method]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        calibrator = create_calibrator(
            path, ["Conv"], str(Path(folder) / "augmented.onnx"), calibrate_method=kind, extra_options=options
        )
        try:
            for _, alike in groupby(batches, np.shape):
                while some := [{input_name: batch} for batch in islice(alike, FRAMES_PER_UPDATE)]:
                    calibrator.collect_data(SimpleNamespace(get_next=partial(next, iter(some), None)))
            ranges = calibrator.compute_data()
        except ValueError as error:  # NumPy's histogram rejects values that are not finite
            message = f"the model's values on the calibration frames have no range: {error}"
            raise ModelError(message, remedy="check that it is trained: layers return NaN, or only zeros") from error
    for name, data in ranges.items():
        if not np.isfinite([float(np.ravel(edge)[0]) for edge in data.range_value]).all():
            raise ModelError(f"tensor {name} is not finite on the calibration frames", remedy="check the model")
    return ranges


def quantise(model: Any, ranges: Any, layers: Iterable[str]) -> Any:
    """A copy of the model with the inputs and weights of the named convolutions quantised."""
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    quantizer = QDQQuantizer(
        deepcopy(model),
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=list(layers),
        nodes_to_exclude=[],
        op_types_to_quantize=["Conv"],
        # A floating-point bias costs nothing, and not every engine supports INT32 biases.
        extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"], "QuantizeBias": False},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    quantised = quantizer.model.model
    onnx.checker.check_model(quantised)
    return quantised


def sensitivities(
    model: Any, ranges: Any, layers: Sequence[str], input_name: str, batches: Sequence[NDArray[Any]]
) -> dict[str, float]:
    """Noise at the outputs of the head when each layer alone is quantised: layer -> RMS of noise / signal.

    Measured at the last weighted layers, before decoding, where values are homogeneous.
    """
    graph = OnnxGraph(model)
    taps = [str(graph.nodes[number].output[0]) for number in graph.last(graph.network())]
    truth = [values for _, values in _run(model, taps, input_name, batches)]
    signals = [float(np.var(values)) for values in truth]
    found = {}
    for layer in layers:
        noisy = zip(_run(quantise(model, ranges, [layer]), taps, input_name, batches), truth, signals, strict=True)
        noise = [float(np.square(values - true).mean()) / max(signal, 1e-12) for (_, values), true, signal in noisy]
        found[layer] = float(np.sqrt(np.mean(noise)))
    return found


def _run(
    model: Any, tensors: Sequence[str], input_name: str, batches: Iterable[NDArray[Any]]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name and values of each tensor, for each batch in turn."""
    import onnx

    ort = onnxruntime("build")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    tapped = deepcopy(model)
    known = {value.name for value in tapped.graph.output}
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in known)
    session = cpu_session(ort, tapped.SerializeToString(), options)
    for batch in batches:
        yield from zip(tensors, session.run(list(tensors), {input_name: batch}), strict=True)


def largest_values(
    model: Any, tensors: Sequence[str], input_name: str, batches: Iterable[NDArray[Any]]
) -> Mapping[str, float]:
    """Largest magnitude of each tensor over the batches; NaN if it has one."""
    found = dict.fromkeys(tensors, 0.0)
    for name, values in _run(model, tensors, input_name, batches):
        if values.size:
            found[name] = float(np.maximum(found[name], np.abs(values).max()))  # np.maximum propagates NaN
    return found
