"""Runs in the Python of `--peer-python`, which has ultralytics (AGPL-3.0); framefuse itself never imports it.

    python peer_script.py '{"model": ..., "video": ..., "seconds": [0.5, 1.5], "out": folder, "options": {...}}'

Writes OUT/N.npz for each frame (the image as decoded by OpenCV, the model input, the raw outputs, the boxes) and
OUT/versions.json.
"""

# mypy: ignore-errors

import json
import os
import sys

os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")


def main() -> None:
    asked = json.loads(sys.argv[1])
    os.environ["YOLO_CONFIG_DIR"] = asked["out"]
    import cv2
    import numpy as np
    import ultralytics
    from ultralytics import YOLO
    from ultralytics.models.yolo.detect import DetectionPredictor

    seen = {}

    class Watched(DetectionPredictor):
        def preprocess(self, im):
            seen["input"] = super().preprocess(im)
            return seen["input"]

        def inference(self, im, *args, **options):
            raw = super().inference(im, *args, **options)
            parts = raw if isinstance(raw, (list, tuple)) else [raw]
            # Copied, because post-processing works in place.
            seen["outputs"] = [np.array(part.cpu()) for part in parts if hasattr(part, "cpu")]
            return raw

    model = YOLO(asked["model"], task="detect")
    capture = cv2.VideoCapture(asked["video"])
    for number, seconds in enumerate(asked["seconds"]):
        while True:
            if not capture.grab():
                sys.exit(f"OpenCV finds no frame at {seconds} s")
            at = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            if abs(at - seconds) < 0.0005:
                break
        image = capture.retrieve()[1]
        result = model.predict(image, device="cpu", verbose=False, save=False, predictor=Watched, **asked["options"])[0]
        boxes = result.boxes.cpu().numpy()
        np.savez(
            os.path.join(asked["out"], f"{number}.npz"),
            image=result.orig_img,
            input=np.array(seen["input"].cpu(), np.float32)[0],
            xyxy=boxes.xyxy, scores=boxes.conf, classes=boxes.cls,
            **{f"output{index}": output for index, output in enumerate(seen["outputs"])},
        )  # fmt: skip
    with open(os.path.join(asked["out"], "versions.json"), "w", encoding="utf-8") as file:
        json.dump({"ultralytics": ultralytics.__version__, "opencv": cv2.__version__}, file)


if __name__ == "__main__":
    main()
