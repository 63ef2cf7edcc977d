"""Makes, in the peers' environment, the OpenVINO folders that ultralytics loads.

    python -m benchmarks.peers.openvino_folders MODEL.onnx --int8

writes MODEL_openvino_model/ and MODEL_int8_openvino_model/.

A folder holds the network as OpenVINO writes it (.xml and .bin) and a metadata.yaml with the keys that an ONNX export
carries inside. ultralytics' own export to OpenVINO starts from PyTorch, where SiLU is one operation; here it starts
from ONNX, where SiLU is two, so they are fused first. That matters for INT8: with quantisers inside SiLU the network
is slower than in bf16. The INT8 folder is quantised by NNCF on frames of the calibration clip (another than is timed),
all but the decoding of boxes, because boxes (0..640) and scores (0..1) cannot share one scale. So the competitor is as
strong as its user could make it.
"""

import argparse
import ast
import json
import re
from pathlib import Path

import numpy as np
import onnx
import openvino
import openvino.opset13

from benchmarks.models import calibration_images

CALIBRATION_SEED = 1
"""Of the clip `calibration`."""
CALIBRATION_HEIGHT = 384
"""16:9 video at width 640, padded to a multiple of 32."""


def folder(model: Path, *, int8: bool = False) -> Path:
    """Where the folder of an ONNX file lies; ultralytics recognises it by the ending of its name."""
    return model.with_name(f"{model.stem}{'_int8' if int8 else ''}_openvino_model")


def write_folder(source: Path, target: Path, network: openvino.Model) -> None:
    """Saves the network beside the metadata of the ONNX file it came from."""
    target.mkdir(parents=True, exist_ok=True)
    openvino.save_model(network, target / f"{source.stem}.xml", compress_to_fp16=False)
    metadata = {item.key: item.value for item in onnx.load(source, load_external_data=False).metadata_props}
    for key in ("imgsz", "names", "args"):
        metadata[key] = ast.literal_eval(metadata.get(key, "{'dynamic': True}"))
    metadata["names"] = list(metadata["names"].values())
    (target / "metadata.yaml").write_text(json.dumps(metadata, indent=2))  # JSON is YAML


def fuse_silu(network: openvino.Model) -> None:
    """Replaces every x * sigmoid(x) by one Swish operation, in place."""
    for product in network.get_ordered_ops():
        if product.get_type_name() != "Multiply":
            continue
        first, second = (port.get_source_output() for port in product.inputs())
        for gate, x in ((first, second), (second, first)):
            node = gate.get_node()
            if node.get_type_name() == "Sigmoid" and node.input(0).get_source_output() == x:
                swish = openvino.opset13.swish(x)
                swish.set_friendly_name(product.get_friendly_name())
                for target in product.output(0).get_target_inputs():
                    target.replace_source_output(swish.output(0))
                break
    network.validate_nodes_and_infer_types()


def quantised(network: openvino.Model) -> openvino.Model:
    """The network with INT8 convolutions, calibrated on frames of the calibration clip."""
    import nncf

    # The images are 640x640 with the image in rows 140 to 500; the rows kept here hold it and 12 rows of padding.
    images = calibration_images(seed=CALIBRATION_SEED)
    margin = (images.shape[2] - CALIBRATION_HEIGHT) // 2
    samples = [np.ascontiguousarray(image[None, :, margin : margin + CALIBRATION_HEIGHT]) for image in images]
    operations = [(op.get_friendly_name(), op.get_type_name()) for op in network.get_ordered_ops()]
    head = max(int(index) for name, _ in operations for index in re.findall(r"model\.(\d+)/", name))
    decoding = re.compile(rf"/model\.{head}/(?!cv[23])")
    ignored = [name for name, kind in operations if decoding.match(name) and kind != "Constant"]
    return nncf.quantize(
        network,
        nncf.Dataset(samples),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(samples),
        ignored_scope=nncf.IgnoredScope(names=ignored, validate=False),
    )


def main() -> None:
    """Writes one or both folders and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--int8", action="store_true", help="also quantise")
    parser.add_argument("--out", type=Path, help="folder of the folders; default: beside the model")
    options = parser.parse_args()
    named = (options.out or options.model.parent) / options.model.name
    network = openvino.Core().read_model(options.model)
    fuse_silu(network)
    write_folder(options.model, folder(named), network)
    print(folder(named))
    if options.int8:
        write_folder(options.model, folder(named, int8=True), quantised(network))
        print(folder(named, int8=True))


if __name__ == "__main__":
    main()
