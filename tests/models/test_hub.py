"""Fetching models: files, addresses and repositories on a real server, and everything that can be wrong with them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from framefuse import Pipeline
from framefuse.cli.app import main
from framefuse.errors import ModelError, UsageError
from framefuse.models import KNOWN, fetched_models, find_model
from framefuse.models.card import read_card
from framefuse.models.hub import card_of_transformers, get_model
from training.squares import write_squares

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "rt_detr", "id2label": {"0": "red", "1": "green", "2": "blue"}}
POLL = 0.01
"""Seconds after which a server notices that it is to end; by default half a second, in every test."""
IMAGES = {
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.25, 0.0],
    "image_std": [0.5, 1.0, 0.2], "size": {"height": 640, "width": 640},
}  # fmt: skip


class Web(ThreadingHTTPServer):
    """Serves `files`: path -> bytes. `seen` has the requests; an `elsewhere` path is redirected there."""

    files: dict[str, bytes]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.seen, self.cut, self.elsewhere = {}, [], 0, {}  # type: ignore[var-annotated]
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def repository(self, name: str, files: dict[str, bytes], **facts: Any) -> None:
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
        rows = [{"rfilename": file, "lfs": {"sha256": found}} for file, found in hashes.items()]
        answer = {"sha": COMMIT, "siblings": rows, "cardData": {"license": "apache-2.0"}, **facts}
        self.files[f"/api/models/{name}/revision/main"] = json.dumps(answer).encode()
        self.files |= {f"/{name}/resolve/{COMMIT}/{file}": data for file, data in files.items()}


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.seen.append((path, self.headers.get("Authorization")))
        if path in self.server.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere[path])
            self.end_headers()
            return
        data = self.server.files.get(path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write((data or b"")[: self.server.cut or None])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Web() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        threading.Thread(target=server.serve_forever, args=[POLL], daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_squares(tmp_path / "found.onnx")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_local_file_is_found_by_its_name(web: Web, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.with_suffix(".yaml").write_text("pad_value: 0\nabout: {licence: MIT}\n")
    assert main(["models", "get", str(model), "--name", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "MIT" in shown and sha256(model) in shown
    model.unlink()
    assert read_card(find_model("mine")).preprocess.pad_value == 0
    assert fetched_models()["mine"]["source"] == str(model)
    results = list(Pipeline([np.zeros((64, 96, 3), np.uint8)] * 2, "mine", engine="null"))
    assert len(results) == 2
    assert not web.seen
    assert main(["models"]) == 0
    assert "fetched" in capsys.readouterr().out


def test_external_weights_come_along(web: Web, tmp_path: Path) -> None:
    split = tmp_path / "split" / "model.onnx"
    split.parent.mkdir()
    scout = onnx.load(find_model("scout-n"))
    onnx.save(scout, split, save_as_external_data=True, location="weights.bin", size_threshold=4096)
    get_model(str(split), name="split")
    assert list(Pipeline([np.zeros((64, 96, 3), np.uint8)], "split", engine="onnxruntime"))
    web.repository("who/what", {"onnx/model.onnx": split.read_bytes(), "onnx/weights.bin": b"x" * 9})
    with pytest.raises(ModelError, match="truncated"):
        get_model("hf://who/what")


def test_a_repository_gives_the_model_its_card_and_its_licence(
    web: Web, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    files = {"onnx/model.onnx": model.read_bytes(), "config.json": json.dumps(CONFIG).encode(),
             "preprocessor_config.json": json.dumps(IMAGES).encode()}  # fmt: skip
    web.repository("who/Rt-Detr_r18", files)
    with Web() as other:
        threading.Thread(target=other.serve_forever, args=[POLL], daemon=True).start()
        path = f"/who/Rt-Detr_r18/resolve/{COMMIT}/onnx/model.onnx"
        web.elsewhere[path] = f"{other.url}/large-file"
        other.files["/large-file"] = model.read_bytes()
        found = get_model("hf://who/Rt-Detr_r18")
        other.shutdown()
    assert other.seen == [("/large-file", None)], "the token stays with the host that it is for"
    assert {token for _, token in web.seen} == {"Bearer secret"}
    assert (found.name, found.licence, found.sha256, found.problem) == (
        "Rt-Detr_r18",
        "apache-2.0",
        sha256(model),
        None,
    )
    assert found.source == f"hf://who/Rt-Detr_r18@{COMMIT}/onnx/model.onnx"
    card = read_card(find_model("Rt-Detr_r18"))
    assert dict(card.names) == {0: "red", 1: "green", 2: "blue"}
    assert card.preprocess.mean == (127.5, 63.75, 0.0)
    assert card.preprocess.std == (127.5, 255.0, 51.0)
    assert (card.preprocess.fit, card.preprocess.interpolation) == ("stretch", "antialias")


def test_cards_of_transformers() -> None:
    gaps = {"model_type": "detr", "id2label": {"1": "person", "3": "car"}}
    card = card_of_transformers(
        gaps, {"do_normalize": False, "rescale_factor": 1 / 255, "size": {"shortest_edge": 800}}
    )
    assert card["names"] == ["unused 0", "person", "unused 2", "car"]
    assert card["activation"] == "softmax"
    assert (card["mean"], card["std"]) == ([0.0] * 3, [255.0] * 3)
    assert "imgsz" not in card
    assert card_of_transformers({}, {}) == {}


def test_an_address_needs_https_or_a_hash(web: Web, model: Path) -> None:
    web.files["/a/net%20work.onnx"] = model.read_bytes()
    address = f"{web.url}/a/net%20work.onnx?token=abc"
    with pytest.raises(UsageError, match="not protected"):
        get_model(address)
    with pytest.raises(ModelError, match="SHA-256"):
        get_model(address, sha256="0" * 64)
    found = get_model(address, sha256=sha256(model).upper())
    assert found.name == "net-work"
    assert "abc" not in found.source


@pytest.mark.parametrize(
    "source,says",
    [
        ("hf://who/absent", "no such repository"),
        ("hf://who/else", "it has other.onnx: hf://who/else/other.onnx"),
        ("hf://who/else/gone.onnx", "no file gone.onnx"),
        ("hf://who/weights", "has no ONNX file"),
        ("hf://who/lies", "not the file that it should be"),
        ("hf://who/text", "not ONNX but a web page"),
        ("hf://who", "no address of a model"),
        ("hf://who/json", "not JSON"),
        ("nothing.onnx", "no file nothing.onnx"),
        ("https://127.0.0.1:1/x.onnx", "Connection refused"),
        ("https://127.0.0.1:1/", "names no file"),
    ],
)
def test_what_can_be_wrong(web: Web, model: Path, source: str, says: str) -> None:
    web.repository("who/else", {"other.onnx": b""})
    web.repository("who/weights", {"model.safetensors": b""})
    web.repository("who/text", {"model.onnx": b"<html>"})
    web.repository("who/lies", {"model.onnx": model.read_bytes()})
    web.files[f"/who/lies/resolve/{COMMIT}/model.onnx"] += b"\0"
    web.files["/api/models/who/json/revision/main"] = b"<html>"
    with pytest.raises((ModelError, UsageError)) as caught:
        get_model(source)
    assert says in f"{caught.value.message}\n{caught.value.remedy}"
    assert caught.value.remedy
    assert not fetched_models()
    folder = Path(os.environ["XDG_CACHE_HOME"], "framefuse", "models")
    assert not folder.exists() or not list(folder.iterdir()), "nothing is left"


def test_a_broken_download_leaves_the_earlier_model(web: Web, model: Path) -> None:
    web.repository("who/what", {"model.onnx": model.read_bytes()})
    get_model("hf://who/what")
    web.cut = 100
    with pytest.raises(ModelError):
        get_model("hf://who/what")
    assert sha256(find_model("what")) == sha256(model)


def test_a_model_that_needs_a_card_is_kept_and_says_so(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = onnx.helper.make_tensor_value_info
    shape = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["image"], ["heat"])],
        "heat",
        [value("image", onnx.TensorProto.FLOAT, (1, 3, 64, 64))],
        [value("heat", onnx.TensorProto.FLOAT, (1, 3, 64, 64))],
    )
    onnx.save(onnx.helper.make_model(shape), tmp_path / "heat.onnx")
    assert main(["models", "get", str(tmp_path / "heat.onnx")]) == 0
    said = capsys.readouterr().err
    assert "cannot be used yet" in said and "semantic" in said and "heat.yaml" in said


@pytest.mark.parametrize("name", ["../up", ".hidden", "a/b", ""])
def test_names_are_names(web: Web, model: Path, name: str) -> None:
    if name:
        with pytest.raises(UsageError, match="cannot be called"):
            get_model(str(model), name=name)
    with pytest.raises(ModelError):
        find_model(name)


@pytest.mark.parametrize(
    "inside,remedy",
    [
        (b"ultralytics.nn.tasks", "yolo export model="),
        (b"models.yolo", "python export.py --weights"),
        (b"code/__torch__", "torch.jit.load"),
        (b"something else", "with the code that trained it"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".onnx"])
def test_checkpoints_say_how_they_are_exported(tmp_path: Path, inside: bytes, remedy: str, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", inside)
    with pytest.raises(ModelError) as caught:
        read_card(path)
    assert remedy in str(caught.value.remedy) and (str(path) in str(caught.value.remedy)) == (
        inside != b"something else"
    )


def test_names_that_are_not_here_say_how_to_get_them(web: Web) -> None:
    for name in (*KNOWN, "hf://who/what", "https://host/x.onnx"):
        with pytest.raises(ModelError) as caught:
            find_model(name)
        assert caught.value.remedy == f"fetch it once: framefuse models get {name}"
    assert not web.seen
