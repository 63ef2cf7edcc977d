"""The peer of benchmarks/selfie.py: mediapipe's selfie segmentation, in an environment of its own
(pip install mediapipe==0.10.9 scikit-video scikit-image 'numpy<2').

    python -m benchmarks.peers.selfie files
    python -m benchmarks.peers.selfie masks MODEL --images FILE.npz --out FILE.npz

`files` prints as JSON where the clip, the photographs and the two models lie, and the version of mediapipe. `masks`
writes the mask that mediapipe's Solutions API finds in each image of every array of a file.

Its graph stretches an image to the size of the network (what lies beyond its border is black), divides it by 255, runs
the network, whose last operator is a sigmoid, and stretches the output to the size of the image. It keeps no state
between images; `masks` fails if it does.
"""

import argparse
import importlib.metadata
import importlib.util
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MODELS = {"general": "selfie_segmentation.tflite", "landscape": "selfie_segmentation_landscape.tflite"}
"""In the order of mediapipe's `model_selection`."""
CLIP = "carphone_pristine.mp4"
PHOTOGRAPHS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
}
"""Of people: package and file. matplotlib comes with mediapipe."""


def folder(package: str) -> Path:
    """Where a package is installed. It is not imported: scikit-video needs an older NumPy for that."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed here")
    return Path(spec.origin).parent


def files() -> dict[str, str]:
    weights = folder("mediapipe") / "modules" / "selfie_segmentation"
    found = {name: str(weights / file) for name, file in MODELS.items()}
    clip = folder("skvideo") / "datasets" / "data" / CLIP
    found |= {name: str(folder(package) / file) for name, (package, file) in PHOTOGRAPHS.items()}
    return found | {"clip": str(clip), "version": importlib.metadata.version("mediapipe")}


def masks(model: str, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, h, w) in 0..1 of (n, h, w, 3) RGB.

    Raises:
        RuntimeError: the mask of an image depends on those before it.
    """
    from mediapipe.python.solutions.selfie_segmentation import SelfieSegmentation

    with SelfieSegmentation(model_selection=list(MODELS).index(model)) as network:
        found = np.stack([network.process(image).segmentation_mask for image in images])
        again = network.process(images[0]).segmentation_mask
    if not np.array_equal(found[0], again):
        raise RuntimeError("mediapipe smooths its masks over time")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("files")
    run = verbs.add_parser("masks")
    run.add_argument("model", choices=MODELS)
    run.add_argument("--images", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.verb == "files":
        print(json.dumps(files()))
    else:
        stored = np.load(asked.images)
        np.savez(asked.out, **{name: masks(asked.model, stored[name]) for name in stored.files})


if __name__ == "__main__":
    main()
