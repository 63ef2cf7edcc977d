"""Settings: precedence, where values came from, and what is said about wrong ones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from framefuse.config import (
    GROUPS,
    PRESET_ALIASES,
    PRESETS,
    Settings,
    group_of,
    load_settings,
    preset_values,
    settings_from,
    takes,
)
from framefuse.errors import ConfigError, UsageError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_the_later_layer_wins_and_is_named(write: Any) -> None:
    path = write("preset: latency\n\nqueue: 7\nconf: 0.4\nmax_age: 3\n")
    effective = load_settings(path, None, {"conf": "0.5"}, defaults={"save_jsonl": True})
    settings, origin = effective.settings, effective.origin
    assert (settings.conf, origin["conf"]) == (0.5, "command line")
    assert (settings.queue, origin["queue"]) == (7, f"file {path}, line 3")
    assert (settings.low_latency, origin["low_latency"]) == (True, "preset latency")
    assert (settings.max_age, origin["max_age"]) == (3, f"file {path}, line 5")
    assert (settings.iou, origin["iou"]) == (0.7, "default")
    assert (settings.save_jsonl, origin["save_jsonl"]) == (True, "default")
    assert set(origin) == set(Settings.model_fields)


def test_the_environment_lies_between_the_file_and_the_command_line(write: Any) -> None:
    path = write("model: m.onnx\nsource: a.mp4\nqueue: 7\nconf: 0.4\n")
    environment = {
        "FRAMEFUSE_CONF": "0.6",
        "FRAMEFUSE_IOU": "0.6",
        "FRAMEFUSE_SAVE_JSONL": "true",
        "FRAMEFUSE_IMGSZ": "384,640",
        "FRAMEFUSE_PRESET": "latency",
        "FRAMEFUSE_SOURCE": "b.mp4",
        "FRAMEFUSE_SERVICE_HOST": "10.0.0.1",  # Kubernetes sets it for a service of this name
        "CONF": "0.9",
    }
    effective = load_settings(path, None, {"iou": "0.5"}, environment=environment)
    settings, origin = effective.settings, effective.origin
    assert (settings.conf, origin["conf"]) == (0.6, "variable FRAMEFUSE_CONF")
    assert (settings.iou, origin["iou"]) == (0.5, "command line")
    assert (settings.queue, settings.max_age, settings.save_jsonl) == (7, 0.25, True)
    assert (settings.imgsz, origin["low_latency"]) == ([384, 640], "preset latency")
    assert (effective.source, effective.model) == ("b.mp4", "m.onnx")
    assert load_settings(environment=environment, preset="throughput").origin["queue"] == "preset throughput"


@pytest.mark.parametrize(
    ("name", "value", "message", "remedy"),
    [
        ("FRAMEFUSE_CONF", "high", "conf is 'high' (variable FRAMEFUSE_CONF)", "a number from 0 to 1"),
        ("FRAMEFUSE_MAX_DETT", "5", "unknown variable FRAMEFUSE_MAX_DETT", "did you mean FRAMEFUSE_MAX_DET?"),
        ("FRAMEFUSE_PRESET", "fast", "unknown preset 'fast'", "latency"),
    ],
)
def test_wrong_variables(name: str, value: str, message: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(environment={name: value})
    assert message in str(caught.value) and remedy in str(caught.value)


def test_a_preset_of_the_command_line_replaces_that_of_the_file(write: Any) -> None:
    effective = load_settings(write("preset: latency\n"), "throughput")
    assert effective.settings == settings_from({"preset": "throughput"})
    assert effective.origin["queue"] == "preset throughput"


@pytest.mark.parametrize("name", [*PRESETS, *PRESET_ALIASES])
def test_presets_change_something_and_are_valid(name: str) -> None:
    assert settings_from(preset_values(name)) == settings_from({"preset": name}) != Settings()


def test_an_option_beside_a_preset_wins() -> None:
    assert settings_from({"preset": "vr", "queue": 9}).queue == 9


def test_one_file_holds_a_whole_run(write: Any) -> None:
    effective = load_settings(write("source: [a.mp4, 0]\nmodel: m.onnx\n"))
    assert effective.source == ["a.mp4", "0"]
    assert effective.model == "m.onnx"
    assert load_settings(write("source: 0\n")).source == "0"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_changes_nothing(write: Any, text: str) -> None:
    assert load_settings(write(text)).settings == Settings()


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("conf: 0.3\nmax_dett: 5\n", "unknown setting 'max_dett' (file {path}, line 2)", "did you mean 'max_det'?"),
        ("max-det: 5\n", "unknown setting 'max-det'", "did you mean 'max_det'?"),
        ("modle: m.onnx\n", "unknown setting 'modle'", "did you mean 'model'?"),
        ("qqqqq: 1\n", "unknown setting 'qqqqq'", "framefuse config show"),
        ("half: true\n", "unknown setting 'half'", "use precision: fp16"),
        ("\nconf: 1.5\n", "conf is 1.5 (file {path}, line 2)", "a number from 0 to 1"),
        ("conf: .nan\n", "conf is nan", "a number from 0 to 1"),
        ("timeout: .inf\n", "timeout is inf", "a number above 0"),
        ("conf:\n", "conf is None", "a number from 0 to 1"),
        ("batch: true\n", "batch is True", "a whole number from 1 to 64"),
        ("imgsz: true\n", "imgsz is True", "one or two whole numbers above 0"),
        ("imgsz: [640, true]\n", "imgsz is [640, True]", "one or two whole numbers above 0"),
        ("classes: [true]\n", "classes is [True]", "class numbers or names"),
        ("imgsz: [1, 2, 3]\n", "imgsz is [1, 2, 3]", "one or two whole numbers above 0"),
        ("batch: 2.5\n", "batch is 2.5", "a whole number from 1 to 64"),
        ("device: gpu\n", "device is 'gpu'", "one of auto, cpu, cuda"),
        ("classes: []\n", "classes is []", "one or more class numbers or names"),
        ("start: 5\nend: 5\n", "end is 5 (file {path}, line 2)", "a number greater than start (5)"),
        ("conf: 0.1\nconf: 0.2\n", "cannot use {path}: conf is set twice, on line 1 and line 2", "name: value"),
        ("source: {a: 1}\n", "source is {{'a': 1}}", "name, path or address"),
        ("source: []\n", "source is []", "name, path or address"),
        ("model: [a, b]\n", "model is ['a', 'b']", "name, path or address"),
        ("- conf\n", "it is not a mapping", "name: value"),
        ("conf: [0.1\n", "expected ',' or ']', but got '<stream end>', line 2", "name: value"),
        ("conf: !!python/name:os.system\n", "could not determine a constructor", "name: value"),
        (b"conf: \xff\xfe\n", "bytes that are not text", "name: value"),
        ("conf: 1\nname: 2024-02-30\n", "day is out of range for month, line 2", "name: value"),
        ("conf: !!int abc\n", "invalid literal for int() with base 10: 'abc', line 1", "name: value"),
        ("conf: !!bool abc\n", "'abc', line 1", "name: value"),
        ("conf: !!timestamp x\n", "line 1", "name: value"),
        (f"conf: {'1' * 5000}\n", "line 1", "name: value"),
        (f"conf: {'1' * 4000}\n", "conf is 1111", "a number from 0 to 1"),
        ("[" * 5000, "nested too deeply", "name: value"),
        (f"conf: {'[' * 5000}{']' * 5000}\n", "nested too deeply", "name: value"),
        ("name: [&a [x, x], &b [*a, *a]]\n", "aliases are not allowed, line 1", "name: value"),
        ('name: "a\\0b"\n', "name is 'a\\x00b'", "name takes text"),
        ('project: "\\ud800"\n', "project is '\\ud800'", "project takes a path"),
        (
            "classes: [99999999999999999999]\n",
            "classes is [99999999999999999999]",
            "one or more class numbers or names",
        ),
        ("timeout: 1e300\n", "timeout is", "a number above 0 to 86400"),
        ("? [1, 2]\n: 3\n", "a key is not text, line 1", "name: value"),
        ("threads: 100000\n", "threads is 100000", "a whole number from 0 to 1024"),
        ("imgsz: 333x\n", "imgsz is '333x'", "one or two whole numbers above 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    write: Any, text: str | bytes, message: str, remedy: str
) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert message.format(path=path) in caught.value.message
    assert remedy in (caught.value.remedy or "")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load_settings(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"max_detections": 5}, "unknown setting 'max_detections'", "did you mean 'max_det'?"),
        ({"conf": "high"}, "conf is 'high'", "a number from 0 to 1"),
        ({"preset": "fast"}, "unknown preset 'fast'", "latency, throughput, vr"),
    ],
)
def test_what_is_wrong_in_python(options: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_from(options)
    assert message in caught.value.message
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"conf": 2}, "conf is 2", "conf takes a number from 0 to 1"),
        ({"conf": "high"}, "conf is 'high'", "conf takes a number from 0 to 1"),
        ({"precision": "fp7"}, "precision is 'fp7'", "one of auto, fp32"),
        ({"start": 2, "end": 1}, "end is 1", "a number greater than start (2)"),
        ({"vid_stride": True}, "vid_stride is True", "a whole number from 1"),
        ({"project": 3}, "project is 3", "project takes a path"),
        ({"project": ""}, "project is ''", "project takes a path"),
        ({"zones": ""}, "zones is ''", "zones takes a path"),
        ({"confidence": 0.5}, "unknown setting 'confidence'", "did you mean 'conf'?"),
        ({"preset": "latency"}, "unknown setting 'preset'", "an argument of Pipeline(...)"),
        ({"half": True}, "unknown setting 'half'", "precision='fp16'"),
    ],
)
def test_settings_of_python_are_refused_in_our_words(options: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**options)
    assert message in caught.value.message
    assert remedy in (caught.value.remedy or "")
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # pydantic's own words stay unseen


@pytest.mark.parametrize("name", ["..", ".", "...", "a/b", "/", "a\\b", " ", "../up"])
def test_the_name_of_a_run_is_no_path(name: str) -> None:
    for attempt in (lambda: Settings(name=name), lambda: settings_from({"name": name})):
        with pytest.raises(UsageError, match="name is ") as caught:
            attempt()
        assert "--project" in (caught.value.remedy or "")
    with pytest.raises(UsageError, match="--name is "):
        load_settings(overrides={"name": name})


def test_names_of_runs_may_have_dots() -> None:
    assert [Settings(name=name).name for name in (".hidden", "v1.2", "a..b")] == [".hidden", "v1.2", "a..b"]


def test_settings_go_to_other_processes_as_they_are() -> None:
    chosen = Settings(conf=0.4, name="run")
    assert pickle.loads(pickle.dumps(chosen)) == chosen.model_copy() == chosen
    assert chosen.model_fields_set == {"conf", "name"}


def test_a_wrong_command_line_value_names_the_option() -> None:
    with pytest.raises(UsageError, match=r"--max-det is '0'") as caught:
        load_settings(overrides={"max_det": "0"})
    assert not isinstance(caught.value, ConfigError)


def test_options_change_single_fields_of_the_base() -> None:
    base = Settings(conf=0.4, queue=2)
    assert settings_from({"queue": 3}, base=base) == Settings(conf=0.4, queue=3)
    assert base.queue == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [(640, [640]), ("640", [640]), ("384x640", [384, 640]), ("384, 640", [384, 640]), ((384, 640), [384, 640])],
)
def test_sizes_in_every_form(value: Any, expected: list[int]) -> None:
    assert settings_from({"imgsz": value}).imgsz == expected


def test_every_setting_is_documented() -> None:
    assert next(iter(GROUPS.values())) == next(iter(Settings.model_fields))
    for field, info in Settings.model_fields.items():
        assert info.description
        assert group_of(field) in GROUPS
        assert takes(field)
