"""framefuse parity: green where nothing is wrong, and red at the very stage where something is."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest

from benchmarks.parity import relayout
from framefuse.cli.app import main
from framefuse.engines import Slot, onnxruntime
from framefuse.errors import CapabilityError, EngineError, FramefuseError, GpuMemoryError, ModelError, UsageError
from framefuse.frame import PIXEL_FORMATS
from framefuse.lab.parity import certify
from framefuse.lab.parity.chain import Chain, decoded, on_host, read_input, write_input
from framefuse.lab.parity.compare import LIMITS, BoxDifference, Limits, PixelDifference
from framefuse.lab.parity.peer import run_peer
from framefuse.lab.parity.report import verdict
from framefuse.prediction import Detections
from framefuse.sources import open_source
from training.squares_clip import squares_clip


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity") / "clip.mp4"
    squares_clip(path, frames=2, size=(322, 242), seed=2)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("layouts")
    made = {layout: str(relayout(layout, folder / f"{layout}.onnx")) for layout in ("yolov5", "end2end")}
    return {"yolov8": "squares", **made}


def found(boxes: list[tuple[float, ...]], scores: list[float], classes: list[int]) -> Detections:
    return Detections(np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes))


def compared(reference: Detections, other: Detections, limits: Limits = LIMITS["fp32"]) -> BoxDifference:
    difference = BoxDifference(limits, 0.25, 0.7)
    difference.add(reference, other)
    return difference


# --- boxes


BOX = (10.0, 10.0, 50.0, 50.0)


def test_the_same_boxes_in_another_order_are_identical() -> None:
    one = found([BOX, (60, 10, 90, 50)], [0.9, 0.8], [0, 1])
    two = found([(60, 10, 90, 50), BOX], [0.8, 0.9], [1, 0])
    assert compared(one, two).verdict == "exact" and "identical" in str(compared(one, two))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (found([(10.1, 10, 50, 50)], [0.9], [0]), "within"),
        (found([(12, 10, 50, 50)], [0.9], [0]), "outside"),
        (found([BOX], [0.85], [0]), "outside"),
        (found([BOX], [0.9], [1]), "outside"),
        (found([], [], []), "outside"),
        (found([BOX, (70, 70, 90, 90)], [0.9, 0.9], [0, 0]), "outside"),
        (found([BOX, (70, 70, 90, 90)], [0.9, 0.255], [0, 0]), "within"),  # rounding decides at the threshold
        (found([BOX, (10, 10, 50, 45)], [0.9, 0.8], [0, 0]), "within"),  # and at that of suppression
    ],
)
def test_what_is_apart_is_judged(other: Detections, expected: str) -> None:
    difference = compared(found([BOX], [0.9], [0]), other)
    assert difference.verdict == expected, str(difference)


@pytest.mark.parametrize(
    ("reference", "other", "pixel", "expected"),
    [
        # All edges within half a pixel of the input, and a side below 16 of them: whatever the overlap.
        ((10, 10, 14, 13), (10.45, 10.45, 14.45, 13.45), 1, "within"),
        ((10, 10, 14, 13), (10.55, 10.45, 14.45, 13.45), 1, "outside"),
        ((10, 10, 10.5, 13), (10.4, 10, 10.9, 13), 1, "within"),  # half of it is elsewhere
        ((10, 10, 18, 16), (10.9, 10.9, 18.9, 16.9), 2, "within"),
        ((10, 10, 18, 16), (10.9, 10.9, 18.9, 16.9), 1, "outside"),
        ((10, 10, 25, 25), (10.49, 10.49, 24.51, 24.51), 1, "within"),
        ((10, 10, 27, 27), (10.49, 10.49, 26.51, 26.51), 1, "outside"),  # larger: overlap alone
        ((10, 10, 110, 110), (10.4, 10, 110, 110), 1, "within"),
        ((10, 10, 110, 110), (14, 10, 110, 110), 1, "outside"),  # IoU 0.96: no half has 0.99
    ],
)
def test_boxes_of_few_pixels_are_judged_by_their_edges(
    reference: tuple[float, ...], other: tuple[float, ...], pixel: float, expected: str
) -> None:
    difference = BoxDifference(LIMITS["fp16"], 0.25, 0.7)
    difference.add(found([reference], [0.9], [0]), found([other], [0.9], [0]), pixel)
    assert difference.verdict == expected, str(difference)
    assert ("judged by their edges" in str(difference)) == bool(difference.fine)
    exact = LIMITS["fp32"]
    assert compared(found([reference], [0.9], [0]), found([other], [0.9], [0]), exact).fine == 0


@pytest.mark.parametrize(("wrong", "expected"), [(1, "within"), (2, "outside")])
def test_one_large_box_of_a_hundred_may_overlap_less(wrong: int, expected: str) -> None:
    places = [(200.0 * number, 0.0, 200.0 * number + 100, 100.0) for number in range(100)]
    moved = [(left + 7 * (row < wrong), top, right, low) for row, (left, top, right, low) in enumerate(places)]
    scores, classes = [0.9] * 100, [0] * 100
    difference = compared(found(places, scores, classes), found(moved, scores, classes), LIMITS["fp16"])
    assert 0.90 < difference.iou < 0.95 and difference.verdict == expected


@pytest.mark.parametrize(
    ("box", "score", "unsure", "tied", "expected"),
    [
        ((70, 70, 90, 90), 0.269, 1, 0, "within"),
        ((70, 70, 90, 90), 0.271, 0, 0, "outside"),
        ((10, 10, 50, 36.5), 0.8, 0, 1, "within"),  # IoU 0.67 with a stronger box
        ((10, 10, 50, 35), 0.8, 0, 0, "outside"),  # 0.63
    ],
)
def test_a_box_that_one_side_lacks_is_excused_where_rounding_decides(
    box: tuple[float, ...], score: float, unsure: int, tied: int, expected: str
) -> None:
    limits, both, one = LIMITS["fp16"], found([BOX, box], [0.9, score], [0, 0]), found([BOX], [0.9], [0])
    for difference in (compared(both, one, limits), compared(one, both, limits)):
        assert (difference.unsure, difference.tied) == (unsure, tied)
        assert difference.verdict == expected
        assert ("excused: score" in str(difference)) == bool(unsure)
        assert ("excused: overlap" in str(difference)) == bool(tied)


@pytest.mark.parametrize(
    ("boxes", "renamed", "score", "expected"),
    [(200, 2, 0.515, "within"), (200, 3, 0.515, "outside"), (200, 1, 0.53, "outside"), (20, 1, 0.5, "outside")],
)
def test_few_boxes_may_be_of_another_class_that_scores_alike(
    boxes: int, renamed: int, score: float, expected: str
) -> None:
    limits = LIMITS["fp16"]
    places = [(20.0 * number, 0.0, 20.0 * number + 20, 20.0) for number in range(boxes)]
    scores = [score if row < renamed else 0.5 for row in range(boxes)]
    classes = [int(row < renamed) for row in range(boxes)]
    difference = compared(found(places, [0.5] * boxes, [0] * boxes), found(places, scores, classes), limits)
    assert difference.verdict == expected, str(difference)
    assert not difference.exact
    assert difference.renamed in (0, renamed) and ("another class" in str(difference)) == bool(difference.renamed)


def test_nothing_against_nothing_is_exact() -> None:
    assert compared(found([], [], []), found([], [], [])).exact


def test_a_box_that_the_edge_cuts_to_nothing_is_itself() -> None:
    line = found([(640, 10, 640, 50), BOX], [0.9, 0.8], [0, 0])
    assert compared(line, line).exact
    assert compared(line, found([BOX], [0.8], [0])).missing == 1


def test_pixels() -> None:
    difference = PixelDifference()
    difference.add(np.zeros((3, 4)), np.zeros((3, 4)))
    assert str(difference) == "identical" and difference.check("decode", 0.0).verdict == "exact"
    difference.add(np.zeros((3, 4)), np.full((3, 4), 0.25))
    assert difference.mean == 0.125 and difference.check("colour", 0.5).verdict == "within"
    assert difference.check("decode", 0.0).verdict == "outside"
    difference.add(np.empty((0,)), np.empty((0,)))
    assert difference.worst == 0.25


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16, np.uint8])
@pytest.mark.parametrize("memory_format", ["nchw", "nhwc"])
def test_a_image_survives_the_slot(dtype: Any, memory_format: Literal["nchw", "nhwc"]) -> None:
    image = np.random.default_rng(0).integers(0, 128, (3, 4, 5)).astype(np.float32)
    shape = (1, 3, 4, 5) if memory_format == "nchw" else (1, 4, 5, 3)
    slot = Slot(np.zeros(shape, dtype), memory_format=memory_format)
    write_input(slot, image)
    assert np.array_equal(read_input(slot), image)


# --- certificates


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
def test_every_layout_on_every_engine_here(layout: str, models: dict[str, str], clip: Path) -> None:
    certificate = certify(models[layout], clip, precisions=("auto", "fp32"), frames=2)
    assert certificate.layout == layout and certificate.boxes > 5
    assert verdict(certificate) == "CERTIFIED", certificate.summary()
    ran = {(engine.name, engine.precision) for engine in certificate.engines if not engine.absent}
    assert {("openvino", "fp32"), ("onnxruntime", "fp32")} <= ran
    for engine in certificate.engines:
        assert engine.absent or (len(engine.checks) == 3 and len(engine.steps) == 5)
        if engine.precision == "fp32":
            assert engine.starts == "no difference beyond rounding at any stage"
    absent = {engine.name: engine.absent for engine in certificate.engines if engine.absent}
    assert all("cuda" in why or "install" in why for why in absent.values()), absent


def broken(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "decode":
        from framefuse.lab import parity as module

        real = module.on_host

        def shifted(frame: Any) -> Any:
            copy = real(frame)
            for plane, columns in zip(copy.planes, (8, 4, 4), strict=True):
                plane[...] = np.roll(plane, columns, axis=1)
            return copy

        monkeypatch.setattr(module, "on_host", shifted)
    elif what == "pixels":
        from framefuse.preprocess import Preprocess

        call = Preprocess.__call__

        def swapped(self: Any, frame: Any, out: Any, placement: Any = None, **options: Any) -> Any:
            place = call(self, frame, out, placement, **options)
            out[...] = out[::-1].copy() if options.get("memory_format", "nchw") == "nchw" else out[..., ::-1].copy()
            return place

        monkeypatch.setattr(Preprocess, "__call__", swapped)
    elif what == "engine":

        class Wrong(onnxruntime.OnnxRuntimeEngine):
            def _run(self, slot: Any) -> None:
                super()._run(slot)
                slot.outputs = tuple(output * np.float32(0.9) for output in slot.outputs)

        monkeypatch.setattr(onnxruntime, "open_engine", Wrong)
        monkeypatch.setattr("framefuse.lab.parity.reference_stage", _right)
    else:
        real_boxes = Chain.boxes

        def more(self: Any, raw: Any, placement: Any, *, ours: bool) -> Detections:
            boxes = real_boxes(self, raw, placement, ours=ours)
            return Detections(boxes.xyxy + (3 if ours else 0), boxes.confidence, boxes.class_id)

        monkeypatch.setattr(Chain, "boxes", more)


def _right(card: Any) -> Any:
    from framefuse.engines import EngineOptions
    from framefuse.lab.parity.chain import Stage

    return Stage(onnxruntime.OnnxRuntimeEngine(card.path, EngineOptions()), card)


@pytest.mark.parametrize(
    ("what", "said"),
    [("decode", "decode"), ("pixels", "resize and padding"), ("engine", "engine"), ("post-process", "post-process")],
)
def test_a_fault_is_found_where_it_is(what: str, said: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, what)
    certificate = certify("squares", clip, engines=["onnxruntime"], frames=2)
    (engine,) = certificate.engines
    assert verdict(certificate) == "NOT CERTIFIED" and not certificate.ok
    wrong = [check.stage for check in (*certificate.pixels, *engine.checks) if check.verdict == "outside"]
    assert any(said in stage for stage in wrong), wrong
    first = next(check.stage for check in engine.steps if check.verdict == "outside")
    assert first == what


def test_an_engine_that_breaks_down_is_outside(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(onnxruntime.OnnxRuntimeEngine):
        def _run(self, slot: Any) -> None:
            raise TypeError("no such thing")

    monkeypatch.setattr(onnxruntime, "open_engine", lambda model, options: Breaks(model, options))
    monkeypatch.setattr("framefuse.lab.parity.reference_stage", _right)
    certificate = certify("squares", clip, engines=["onnxruntime"], frames=1)
    assert verdict(certificate) == "NOT CERTIFIED" and "TypeError: no such thing" in certificate.summary()[0]


@pytest.mark.parametrize(
    ("error", "broken"),
    [(EngineError("the library's own failure"), True), (GpuMemoryError("no room"), False),
     (CapabilityError("no such GPU"), False), (ModelError("operators are missing"), False)],
)  # fmt: skip
def test_an_engine_that_cannot_start_is_absent_unless_it_breaks(
    error: FramefuseError, broken: bool, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: Path, options: Any) -> Any:
        raise error

    monkeypatch.setattr("framefuse.engines.openvino.OpenVinoEngine", fail)
    certificate = certify("squares", clip, engines=["onnxruntime", "openvino"], frames=1)
    openvino = certificate.engines[1]
    assert certificate.ok is not broken and bool(openvino.absent) is not broken
    assert error.message in certificate.summary()[1]


def test_pages_say_the_same(clip: Path) -> None:
    certificate = certify("squares", clip, engines=["onnxruntime", "cudnn"], frames=1)
    page, text, data = certificate.html(), certificate.markdown(), json.loads(certificate.to_json())
    assert "CERTIFIED" in page and "data:image/jpeg" in page and "<script" not in page
    assert text.startswith("# Parity certificate: CERTIFIED") and "not run here" in text
    assert data["verdict"] == "CERTIFIED" and [engine["name"] for engine in data["engines"]] == ["onnxruntime", "cudnn"]
    stages = [check.stage for check in certificate.pixels]
    assert stages == ["decode", "colour"] and all(stage in page and stage in text for stage in stages)


def test_images_instead_of_a_video() -> None:
    image = np.full((120, 160, 3), 128, np.uint8)
    image[30:70, 40:80] = (0, 0, 255)
    certificate = certify("squares", [image], engines=["onnxruntime"], frames=3)
    assert len(certificate.frames) == 1 and certificate.pixels[0].verdict == "not compared"
    assert verdict(certificate) == "CERTIFIED"


def seconds(certificate: Any) -> list[float]:
    return [at for _, _, at in certificate.frames]


@pytest.mark.slow
def test_frames_are_spread_over_the_video_and_named(tmp_path: Path) -> None:
    clip = tmp_path / "long.mp4"
    squares_clip(clip, frames=600, size=(160, 96), seed=2)  # 30 frames/s; two frames of it are sought
    for count, expected in ((2, [5, 15]), (4, [2.5, 7.5, 12.5, 17.5])):
        certificate = certify("squares", clip, engines=["onnxruntime"], frames=count)
        assert verdict(certificate) == "CERTIFIED" and certificate.pixels[0].verdict == "exact"
        assert seconds(certificate) == pytest.approx(expected, abs=1)
    said = ", ".join(f"{at:.2f} s" for at in seconds(certificate))
    assert f"4 frames of 160x96 from {clip} (at {said})" in certificate.markdown() and said in certificate.html()
    found = json.loads(certificate.to_json())
    assert found["frames"] == 4 and [one["seconds"] for one in found["compared"]] == seconds(certificate)
    part = certify("squares", clip, engines=["onnxruntime"], frames=2, start=18, end=19)
    assert part.ok and seconds(part) == pytest.approx([18.25, 18.75], abs=0.13)


def test_the_command_starts_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=90, size=(160, 96), seed=2)
    words = ["parity", "squares", "--source", str(tmp_path / "clip.mp4"), "--engine", "onnxruntime", "-q", "--json"]
    assert main([*words, "--start", "2"]) == 0
    places = [one["seconds"] for one in json.loads(capsys.readouterr().out)["compared"]]
    assert len(places) == 4 and min(places) >= 2 and max(places) > 2.75
    assert main([*words, "--start", "5"]) == 1
    assert "start 5" in capsys.readouterr().err


def test_frames_without_a_pts_are_found_by_their_number(clip: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.h264"
    with av.open(str(clip)) as source, av.open(str(raw), "w", format="h264") as made:
        stream = made.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                made.mux(packet)
    certificate = certify("squares", raw, engines=["onnxruntime"], frames=2)
    assert verdict(certificate) == "CERTIFIED" and certificate.pixels[0].verdict == "exact"


def test_planes_of_another_format_are_the_same_image(clip: Path) -> None:
    """As a GPU's decoder gives them: chroma interleaved."""
    ours = [on_host(frame) for frame in open_source(clip)]
    pairs = [np.stack(frame.planes[1:], axis=-1) for frame in ours]
    like = [
        replace(frame, planes=(frame.planes[0], pair), format=PIXEL_FORMATS["nv12"])
        for frame, pair in zip(ours, pairs, strict=True)
    ]
    for frame, other in zip(like, decoded(clip, like), strict=True):
        assert all(np.array_equal(one, two) for one, two in zip(frame.planes, other.planes, strict=True))


def test_no_boxes_is_no_certificate() -> None:
    grey = np.full((64, 64, 3), 128, np.uint8)
    certificate = certify("squares", [grey], engines=["onnxruntime"])
    assert certificate.ok and "found no boxes" in verdict(certificate)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [("squares", {"frames": 0}, "frames is 0"), ("squares", {"engines": ["other"]}, "'other'"),
     ("body-n", {}, "certificates are of objects")],
)  # fmt: skip
def test_what_cannot_be_certified(model: str, options: dict[str, Any], said: str, clip: Path) -> None:
    with pytest.raises(UsageError, match=said):
        certify(model, clip, **options)


# --- ultralytics


PEER = """
import json, os, sys
import numpy as np
asked = json.loads(sys.argv[1])
{body}
"""


def peer_python(folder: Path, body: str) -> Path:
    """A Python that runs `body` whatever script it is given."""
    script = folder / "peer.py"
    script.write_text(PEER.format(body=body))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_peer_that_fails_says_why(tmp_path: Path, clip: Path) -> None:
    with pytest.raises(CapabilityError, match="cannot be run"):
        run_peer(tmp_path / "none", clip, clip, [0.0], {})
    with pytest.raises(CapabilityError, match="has no ultralytics"):
        run_peer(Path(sys.executable), clip, clip, [0.0], {})
    with pytest.raises(EngineError, match="something broke"):
        run_peer(peer_python(tmp_path, "raise SystemExit('something broke')"), clip, clip, [0.0], {})


TWIN = """
sys.path.insert(0, {source!r})
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.lab.parity.chain import Chain, Selection, colours, on_host, preprocessed, reference_stage
from framefuse.config import Settings
from framefuse.runtime.choices import choose_preprocess
from framefuse.sources import open_source
from pathlib import Path
card = read_card(find_model("squares"))
chain = Chain(card, choose_preprocess(card, Settings())[0], Selection(0.25, 0.7, 300))
stage = reference_stage(card)
found = {{round(float(frame.pts * frame.time_base), 3): on_host(frame) for frame in open_source(asked["video"])}}
for number, seconds in enumerate(asked["seconds"]):
    frame = found[round(seconds, 3)]
    image = np.floor(colours(frame) + 0.5).astype(np.uint8)[::-1].transpose(1, 2, 0).copy()
    pixels, place = preprocessed(chain.spec, Frame.from_array(image))
    {fault}
    raw = stage.run(pixels)
    boxes = chain.boxes(raw, place, ours=False)
    np.savez(os.path.join(asked["out"], f"{{number}}.npz"), image=image, input=pixels, xyxy=boxes.xyxy,
             scores=boxes.confidence, classes=boxes.class_id, output0=raw.outputs[0])
json.dump({{"ultralytics": "1", "opencv": "2"}}, open(os.path.join(asked["out"], "versions.json"), "w"))
"""


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [("", None), ("pixels = pixels[::-1].copy()", "resize and padding"),
     ("pixels = np.pad(pixels, ((0, 0), (0, 32), (0, 0)))", "resize")],
)  # fmt: skip
@pytest.mark.slow
def test_a_peer_is_compared_stage_by_stage(fault: str, wrong: str | None, tmp_path: Path, clip: Path) -> None:
    source = str(Path(certify.__code__.co_filename).parents[3])
    python = peer_python(tmp_path, TWIN.format(source=source, fault=fault or "pass"))
    certificate = certify("squares", clip, engines=["onnxruntime"], frames=2, peer_python=python)
    (engine,) = certificate.engines
    assert certificate.peer == "ultralytics 1 + OpenCV 2" and engine.peer
    outside = [check.stage for check in engine.peer if check.verdict == "outside"]
    assert (outside[0] if outside else None) == wrong, engine.peer
    assert certificate.ok == (wrong is None) and certificate.peer in certificate.html()


def test_a_layout_that_ultralytics_does_not_read(models: dict[str, str], clip: Path) -> None:
    certificate = certify(models["yolov5"], clip, engines=["onnxruntime"], frames=1, peer_python=Path("/none"))
    assert "this is layout yolov5" in certificate.peer and certificate.peer in "".join(certificate.summary())


# --- the command


def test_the_command(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    code = main(
        ["parity", "squares", "--source", str(clip), "--engine", "onnxruntime", "--frames", "1", "--out", str(page)]
    )
    printed = capsys.readouterr()
    assert "engine onnxruntime fp32 on cpu" in printed.err
    assert code == 0 and printed.out.rstrip().endswith("CERTIFIED") and "<html" in page.read_text()
    code = main(
        ["parity", "squares", "--source", str(clip), "--engine", "onnxruntime", "--frames", "1", "-q", "--json"]
    )
    assert code == 0 and json.loads(capsys.readouterr().out)["verdict"] == "CERTIFIED"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--engine", "openvino,cudnn"], ["--device", "cuda"]])
def test_the_command_fails_where_an_engine_that_was_named_or_every_engine_is_missing(
    words: list[str], clip: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["parity", "squares", "--source", str(clip), "--frames", "1", "-q", *words]) == 3
    assert " was not compared: " in " ".join(capsys.readouterr().err.split())


def test_the_command_fails_where_the_certificate_does(
    clip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, "pixels")
    assert main(["parity", "squares", "--source", str(clip), "--engine", "onnxruntime", "--frames", "1"]) == 4
    assert "resize and padding" in capsys.readouterr().err
    assert main(["parity", "squares", "--out", "page.pdf"]) == 2


def test_only_engines_that_run_are_announced(clip: Path) -> None:
    said: list[str] = []
    certify("squares", clip, engines=["onnxruntime", "cudnn"], frames=1, say=said.append)
    assert [line for line in said if line.startswith("engine ")] == ["engine onnxruntime fp32 on cpu"]


def test_without_the_reference_nothing_begins(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framefuse.lab.parity.chain.find_spec", lambda name: None)
    said: list[str] = []
    with pytest.raises(CapabilityError, match="onnxruntime, the reference, is not installed"):
        certify("squares", clip, say=said.append)
    assert not said


@pytest.mark.parametrize(("out", "code"), [("", 2), (".", 2), ("nowhere/page.html", 1)])
def test_pages_that_cannot_be(out: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert main(["parity", "squares", "--out", out]) == code
    assert main(["parity", "squares", "--out", "folder.html"]) == 1
