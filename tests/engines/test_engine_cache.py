"""The cache of built engines: hits, staleness, damage, failed builds, and two builders at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from framefuse.common.files import write_atomically
from framefuse.engines.cache import Cached, EngineCache, model_hash

KEY = {"model": "a", "engine": "toy", "version": "1", "device": "cpu", "precision": "fp32", "shapes": "1", "flags": ""}


def get(folder: Path, content: bytes = b"built", **changes: str) -> Cached:
    return EngineCache("toy", folder).get(KEY | changes, lambda path: _write(path, content), suffix=".bin")


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_the_second_time_it_is_there(tmp_path: Path) -> None:
    first, second = get(tmp_path), get(tmp_path, b"other")
    assert (first.built, second.built) == (True, False)
    assert second.path == first.path and second.path.read_bytes() == b"built"
    assert second.seconds == pytest.approx(first.seconds, abs=1e-3)
    assert "from the cache" in second.reason and first.note == second.note == ""


@pytest.mark.parametrize("field", sorted(KEY))
def test_another_key_is_another_artifact(tmp_path: Path, field: str) -> None:
    first = get(tmp_path)
    other = get(tmp_path, b"other", **{field: "changed"})
    assert other.built and other.path != first.path
    stale = field not in ("model", "precision", "shapes")  # those are another engine, not an old one
    assert (f"{field} was {KEY[field]!r}, is 'changed'" in other.note) == stale
    assert get(tmp_path).built is False


@pytest.mark.parametrize("damage", ["truncated", "missing", "sidecar", "no sidecar", "foreign sidecar"])
def test_damage_is_built_again_and_said(tmp_path: Path, damage: str) -> None:
    path = get(tmp_path).path
    sidecar = path.with_suffix(".json")
    if damage == "truncated":
        path.write_bytes(b"bu")
    elif damage == "missing":
        path.unlink()
    elif damage == "sidecar":
        sidecar.write_text("{")
    elif damage == "no sidecar":
        sidecar.unlink()
    else:
        facts = json.loads(sidecar.read_text())
        facts["key"]["device"] = "another"
        sidecar.write_text(json.dumps(facts))
    again = get(tmp_path, b"again")
    assert again.built and again.path.read_bytes() == b"again"
    assert damage == "missing" or "built again" in again.note
    assert not get(tmp_path).built


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        EngineCache("toy", tmp_path).get(KEY, fail, suffix=".bin")
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert get(tmp_path).built


def test_what_a_killed_build_left_goes_with_the_next(tmp_path: Path) -> None:
    left, fresh = tmp_path / "tmp0123.bin", tmp_path / "tmp4567.bin"
    for path in (left, fresh):
        path.touch()
    os.utime(left, (0, 0))
    get(tmp_path)
    assert fresh.exists() and not left.exists()


def test_a_key_must_be_complete(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="precision"):
        EngineCache("toy", tmp_path).get({name: "" for name in KEY if name != "precision"}, print, suffix=".bin")


def test_two_builders_build_once(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from framefuse.engines.cache import EngineCache
def build(path):
    time.sleep(0.5)
    path.write_bytes(b"built")
print(EngineCache("toy", Path({str(tmp_path)!r})).get({KEY!r}, build, suffix=".bin").built)
"""
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in both) == ["False", "True"]


def test_the_hash_covers_external_weights(tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2000])],
        [numpy_helper.from_array(np.ones(2000, np.float32), "w")],
    )
    path = tmp_path / "add.onnx"
    onnx.save(helper.make_model(graph), path, save_as_external_data=True, location="add.data")
    before = model_hash(path)
    assert before == model_hash(path)
    weights = bytearray((tmp_path / "add.data").read_bytes())
    weights[0] ^= 1
    (tmp_path / "add.data").write_bytes(weights)
    assert model_hash(path) != before


def test_the_hash_covers_weights_in_nodes_and_in_folders(tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["y"], value=weights)],
        "constant",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2000])],
    )
    path, data = tmp_path / "constant.onnx", tmp_path / "inner" / "w.data"
    data.parent.mkdir()
    options: dict[str, bool] = {"save_as_external_data": True, "convert_attribute": True}
    onnx.save(helper.make_model(graph), path, location="inner/w.data", **options)
    before = model_hash(path)
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    assert model_hash(path) != before


def test_what_is_there_is_used_from_a_folder_that_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get(tmp_path)

    def read_only(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("framefuse.engines.cache.locked", read_only)
    assert not get(tmp_path).built
    with pytest.raises(OSError, match="Read-only"):
        get(tmp_path, flags="other")


def test_what_is_written_may_be_read_like_any_other_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"content")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b"]


@pytest.mark.parametrize("content", ["[" * 100_000, '{"key": 5}', "[1]", '{"key": null, "sha256": 1e999}'])
def test_descriptions_that_nobody_wrote(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    path = get(tmp_path).path
    path.with_suffix(".json").write_text(content)
    assert get(tmp_path).built
