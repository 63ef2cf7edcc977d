"""The peers of benchmarks/detr.py: transformers' detectors with random weights, in an environment of their own
(pip install torch==2.13.0 transformers onnx onnxscript pillow).

    python -m benchmarks.peers.detr NAME --images FOLDER --out FILE.onnx

writes the network as ONNX, a card beside it, and in FILE.npz what transformers' post-processing finds in each image.
The logits are scaled and shifted on the images, so that about OBJECTS queries of each pass confidence 0.25.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

OBJECTS = 30
SIZE = 672
"""Sides of the input: a multiple of 32 for convolutions, and of 56 for the windows of RF-DETR."""
CLASSES = 80
CONF = 0.25


def network(name: str) -> Any:
    """An untrained network, and the image processor that reads its outputs."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    labels: dict[str, Any] = {"num_labels": CLASSES}
    levels: dict[str, Any] = {"depths": [2, 2, 2, 2], "layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
    if name in ("rtdetr-r18", "rtdetrv2-r18"):
        stages = ["stage2", "stage3", "stage4"]
        backbone = hf.RTDetrResNetConfig(embedding_size=64, out_features=stages, **levels)
        labels |= {"backbone_config": backbone, "encoder_in_channels": [128, 256, 512], "decoder_layers": 3}
        if name == "rtdetr-r18":
            return hf.RTDetrForObjectDetection(hf.RTDetrConfig(**labels)), hf.RTDetrImageProcessor()
        return hf.RTDetrV2ForObjectDetection(hf.RTDetrV2Config(**labels)), hf.RTDetrImageProcessor()
    if name == "dfine-s":
        channels = {"stem_channels": [3, 16, 16], "stage_in_channels": [16, 64, 256, 512]}
        channels |= {"stage_mid_channels": [16, 32, 64, 128], "stage_out_channels": [64, 256, 512, 1024]}
        channels |= {"hidden_sizes": channels["stage_out_channels"]}
        blocks = {"stage_num_blocks": [1, 1, 2, 1], "stage_numb_of_layers": [3, 3, 3, 3]}
        backbone = hf.HGNetV2Config(out_indices=[2, 3, 4], use_learnable_affine_block=True, **channels, **blocks)
        labels |= {"backbone_config": backbone, "encoder_in_channels": [256, 512, 1024], "decoder_layers": 3}
        config = hf.DFineConfig(depth_mult=0.34, hidden_expansion=0.5, **labels)
        return hf.DFineForObjectDetection(config), hf.RTDetrImageProcessor()
    if name == "rfdetr":
        config = hf.RfDetrConfig(**labels)
        config.backbone_config.image_size = SIZE
        net = hf.RfDetrForObjectDetection(config)
        for layer in net.modules():  # what it does for this size, but not while it is exported
            if hasattr(layer, "interpolate_pos_encoding"):
                layer.interpolate_pos_encoding = lambda *_, layer=layer: layer.position_embeddings
        return net, hf.DeformableDetrImageProcessor()
    backbone = hf.ResNetConfig(out_features=["stage4"], **levels)
    config = hf.DetrConfig(backbone_config=backbone, encoder_layers=2, decoder_layers=2, **labels)
    return hf.DetrForObjectDetection(config), hf.DetrImageProcessor()


def pixels(path: Path, mean: list[float], std: list[float]) -> tuple[Any, tuple[int, int]]:
    """An image as the network sees it, every pixel of a block once, and its height and width."""
    import torch
    from PIL import Image

    image = np.asarray(Image.open(path).convert("RGB"))
    down, across = image.shape[0] // SIZE, image.shape[1] // SIZE
    values = (image[::down, ::across].astype(np.float32) / 255 - np.float32(mean)) / np.float32(std)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())[None], image.shape[:2]


def shift(net: Any, batch: Any, softmax: bool) -> None:
    """Scale the logits to a standard deviation of 2, or of 4 before a softmax, and shift them, so that OBJECTS of an
    image pass."""
    import torch

    heads = [layer for name, layer in net.named_modules() if isinstance(layer, torch.nn.Linear) and (
        "decoder.class_embed" in name or name in ("class_embed", "class_labels_classifier"))]  # fmt: skip
    last = heads[-1]
    with torch.no_grad():
        found = net(pixel_values=batch).logits
        scale = (4 if softmax else 2) / float(found.std())
        last.weight.mul_(scale)
        last.bias.mul_(scale)
        found = net(pixel_values=batch).logits.double()
        if softmax:  # a query passes if exp(best) / CONF > exp(none) + the sum of exp(classes)
            sides = found[..., :-1].amax(-1).exp() / CONF - found[..., :-1].exp().sum(-1)
            margins = sides.clamp(min=1e-9).log() - found[..., -1]
        else:
            margins = found.amax(-1) - math.log(CONF / (1 - CONF))
        # Halfway between two queries, so that rounding decides about neither.
        last_in = OBJECTS * len(batch) - 1
        by = float(margins.flatten().sort(descending=True).values[last_in : last_in + 2].mean())
        if softmax:
            last.bias[-1] += by
        else:
            last.bias -= by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    import torch

    net, processor = network(asked.name)
    net.eval()
    softmax = asked.name.startswith("detr")
    plain = not getattr(processor, "do_normalize", False)
    mean, std = ([0.0] * 3, [1.0] * 3) if plain else (processor.image_mean, processor.image_std)
    files = sorted(asked.images.glob("*.png"))
    inputs = [pixels(path, mean, std) for path in files]
    batch = torch.cat([values for values, _ in inputs])
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
            layer.reset_running_stats()
    net.train()
    with torch.no_grad():
        net(pixel_values=batch)
    net.eval()
    shift(net, batch, softmax)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: Any) -> Any:
            found = self.net(pixel_values=images)
            return found.logits, found.pred_boxes

    names = {"input_names": ["images"], "output_names": ["logits", "boxes"]}
    torch.onnx.export(Plain().eval(), (batch[:1],), str(asked.out), dynamo=False, opset_version=17, **names)
    card = ["task: detect", "layout: detr", "outputs: [boxes, logits]", f"imgsz: {SIZE}", "fit: stretch"]
    card += [f"activation: {'softmax' if softmax else 'sigmoid'}", f"names: {[str(n) for n in range(CLASSES)]}"]
    card += [f"mean: {[255 * value for value in mean]}", f"std: {[255 * value for value in std]}"]
    asked.out.with_suffix(".yaml").write_text("\n".join(card) + "\n")
    stored: dict[str, Any] = {}
    for path, (values, size) in zip(files, inputs, strict=True):
        with torch.no_grad():
            found = net(pixel_values=values)
        (result,) = processor.post_process_object_detection(found, threshold=CONF, target_sizes=[size])
        for part in ("boxes", "scores", "labels"):
            stored[f"{path.stem}/{part}"] = result[part].numpy()
    np.savez(asked.out.with_suffix(".npz"), **stored)


if __name__ == "__main__":
    main()
