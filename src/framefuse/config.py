"""Settings: every option of framefuse, defined once for the command line, the YAML file and `Pipeline(...)`.

Precedence, lowest first: default, preset, YAML file, environment, command line. `load_settings` applies it and records
where each value comes from.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, ValidationInfo, field_validator

from framefuse.common.machine import available_cores
from framefuse.common.names import VALUES, nearby, nearest, wish
from framefuse.common.redact import brief
from framefuse.errors import ConfigError, UsageError

Strict = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, coerce_numbers_to_str=True)

ClassId = Annotated[int, Field(ge=0, le=65535)]
ClassName = Annotated[str, Field(strict=True, min_length=1)]
Text = Annotated[str, Field(min_length=1)]
DAY = 86400
"""Upper limit of all waiting times, in seconds."""
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=DAY)]
PositiveSeconds = Annotated[float, Field(gt=0, le=DAY)]
UNWRITABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""NUL and lone surrogates, except those by which Python represents bytes of a file name that is not UTF-8."""


def option(default: Any, description: str, **limits: Any) -> Any:
    """A field of `Settings`. `limits` are those of `pydantic.Field`."""
    return Field(default, description=description, **limits)


class Settings(BaseModel):
    """All options with their defaults. Names are the same in Python, in YAML and (with dashes) on the command line.

    Raises:
        UsageError: an option is unknown (suggests the nearest name) or has a wrong value (says what is allowed).
    """

    model_config = Strict

    # model
    device: str = option(
        "auto",
        "where everything after decoding runs; cuda:1 is the second visible GPU",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
        json_schema_extra={"enum": ["auto", "cpu", "cuda", "cuda:N"]},
    )
    engine: str = option(
        "auto",
        "auto, or one of `framefuse doctor`: openvino, onnxruntime, onnxruntime-tensorrt, onnxruntime-nvrtx, cudnn, "
        "tensorrt, torch, tvm, null",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8", "fp8"] = option(
        "auto",
        "number format of the model; auto: the best safe one for this machine (see the report); tf32: fp32 with "
        "factors rounded for the tensor cores of a GPU",
    )
    calib: Text | None = option(None, "engine cudnn: sample frames by which each layer's precision is chosen")
    imgsz: list[PositiveInt] | None = option(
        None, "input size: a number, or height and width; default: the model's", min_length=1, max_length=2
    )
    rect: bool = option(
        True,
        "shrink the padded axis if the model allows it (1080p at 640 runs as 640x384); off on cuda if frame sizes may "
        "differ",
    )
    batch: int = option(
        1,
        "maximum frames per batch; on cuda, unless it is set: 8 if several videos are read, all views of a frame that "
        "has several, and the views of four frames for mattes of a file",
        ge=1,
        le=64,
    )
    batch_timeout: Seconds = option(0.05, "seconds a partial batch waits for more frames")
    streams: int = option(0, "requests the engine runs at once; 0: chosen to fit the cores", ge=0, le=1024)
    threads: int = option(0, "total engine threads; 0: the cores this process may use", ge=0, le=1024)
    slots: int = option(0, "requests in flight; 0: one more than the engine runs at once", ge=0, le=1024)
    memory: Literal["auto", "copy", "mapped", "managed"] = option(
        "auto", "how host frames reach a GPU: copied, read over the bus, or migrated page by page"
    )
    max_memory: float | None = option(
        None, "GPU memory that the run may take, in MiB; default: what is free", gt=0, le=524288
    )
    target_utilization: float = option(
        0.97, "share of the GPU's memory that may be in use once the run has started, by all programs", gt=0, le=1
    )
    workspace_mb: int = option(0, "scratch memory the engine may use, MiB; 0: its default", ge=0, le=524288)
    check_outputs: bool = option(
        True, "compare what an engine computes with FP32 on the CPU, beside the run, once for each model and input size"
    )

    # detections
    conf: Share = option(0.25, "minimum confidence")
    iou: Share = option(0.7, "overlap (IoU) above which NMS drops the weaker box of a class")
    max_det: int = option(300, "maximum detections per frame", ge=1, le=30000)
    classes: list[ClassId | ClassName] | None = option(
        None, "classes to keep, such as 0,2 or car,person; default: all", min_length=1
    )
    agnostic_nms: bool = option(False, "let NMS suppress boxes across classes")
    min_area: float = option(0, "smallest box to keep: square pixels, or a share of the frame up to 1", ge=0)

    # views
    tiles: Text | None = option(
        None,
        "also look at tiles: 2x3 (rows x columns) or 640 (pixels), 640:0.25 with overlap; auto: as many as the size "
        "of the frame and the measured time of the model suggest",
    )
    tiles_whole: bool = option(True, "look at the whole frame besides its tiles")
    target_fps: float | None = option(
        None,
        "--tiles auto and --adaptive: frames per second that the model has to reach, all sources together; "
        "default: the rate of live sources, no limit for files",
        gt=0,
        le=100000,
    )
    roi: Text | None = option(
        None,
        "look only here: x,y,width,height or a polygon x1,y1,x2,y2,x3,y3 in pixels or shares of the frame; "
        "several with semicolons",
    )
    stereo: Literal["auto", "sbs", "tb", "left", "right"] | None = option(
        None,
        "both eyes of a stereo frame as two images: side by side or top and bottom; or one eye; auto: as the video's "
        "metadata or name says",
    )

    # tracks
    track: Literal["bytetrack", "ocsort"] | None = option(
        None, "follow objects from frame to frame, and give each its id"
    )
    track_high: Share = option(0.4, "boxes of this confidence are matched with tracks first")
    track_low: Share = option(0.1, "boxes of this confidence can continue a track, even below conf, which hides them")
    track_new: Share = option(0.5, "boxes of this confidence can begin a track")
    track_buffer: Seconds = option(1.0, "seconds for which a lost track is remembered")
    track_match: float = option(0.2, "overlap (IoU) that a box needs to continue a track", gt=0, le=1)
    track_confirm: int = option(2, "frames in a row that show a new track before it counts", ge=1, le=1000)
    track_agnostic: bool = option(False, "let a track go on with a box of another class")
    trail: Seconds = option(0.0, "seconds of its path that --save and --show draw of each track")

    # events
    events: bool = option(False, "report what happens to tracks: Result.events, counts in the report")
    zones: Path | None = option(None, "YAML file of zones that objects enter and lines that they cross")
    stationary: PositiveSeconds = option(10.0, "seconds without motion that make an object stationary")
    recheck: Seconds = option(60.0, "seconds between events of a stationary object; 0: none")
    thumbnails: bool = option(True, "with --save-events, write an image of each track")

    # adaptive compute
    adaptive: bool = option(
        False, "let the model see only the frames that matter; the objects of the others are interpolated"
    )
    min_agreement: float = option(
        0.96,
        "--adaptive: least share of the objects that is found as the model on every frame would find it",
        gt=0,
        le=1,
    )
    max_latency: PositiveSeconds | None = option(
        None,
        "--adaptive: seconds that a frame may wait for its result; default: 0.3 for live sources, no limit for files",
    )
    max_power: float | None = option(
        None, "--adaptive: watts of the device above which fewer frames are inferred", gt=0, le=1e6
    )

    # source
    vid_stride: int = option(1, "use every n-th frame", ge=1, le=100000)
    start: float | None = option(None, "start time in seconds", ge=0)
    end: float | None = option(None, "end time in seconds", gt=0)
    readers: int = option(0, "videos, or parts of a long one, to read at once; 0: up to 8 on cuda, else 1", ge=0, le=64)
    decode_threads: int = option(2, "threads of the video decoder", ge=1, le=64)
    max_pixels: int = option(160_000_000, "largest frame to decode, in pixels; others are refused", ge=1)
    low_latency: bool = option(False, "decode and encode without reordering delay if the codec allows it")
    max_age: PositiveSeconds = option(1.0, "live sources: drop frames older than this many seconds")
    timeout: PositiveSeconds = option(10.0, "live sources: seconds without data that count as a loss")
    reconnect: int = option(-1, "live sources: attempts in a row before giving up; -1: no limit", ge=-1)
    tls_verify: Text = option(
        "auto",
        "verify certificates of https and rtsps servers: on, off, a PEM file of trusted ones, or auto: on "
        "for https, off for rtsps, because cameras sign their own",
        json_schema_extra={"enum": ["auto", "on", "off", "FILE"]},
    )

    # pipeline
    queue: int = option(3, "maximum frames between two stages", ge=1, le=1024)
    load_timeout: Seconds = option(600.0, "CPU: maximum seconds to load a model; 0: no limit")
    request_timeout: Seconds = option(120.0, "maximum seconds for one batch; 0: no limit")

    # output
    save: bool = option(False, "write the annotated video or images")
    line_width: int = option(0, "pixels of the lines that are drawn; 0: by the frame's size", ge=0, le=100)
    hide_labels: bool = option(False, "draw no labels")
    hide_conf: bool = option(False, "draw labels without confidences")
    save_txt: bool = option(False, "write YOLO txt labels")
    save_json: bool = option(False, "write COCO JSON")
    save_jsonl: bool = option(False, "write one JSON line per frame")
    save_csv: bool = option(False, "write one CSV row per detection")
    save_mot: bool = option(False, "write the tracks as MOTChallenge text")
    save_parquet: bool = option(False, "write one row per detection as Parquet (needs pyarrow)")
    save_cvat: bool = option(False, "write labels for CVAT: tracks with --track, otherwise boxes")
    save_label_studio: bool = option(False, "write tasks for Label Studio, like --save-cvat")
    save_events: bool = option(False, "write one JSON line per event of a track")
    save_crop: bool = option(False, "write each object as an image into crops/CLASS")
    save_frames: bool = option(False, "write the frames as images; with --save-txt this makes a data set")
    save_hits: bool = option(False, "write the frames with detections as images")
    project: Path = option(Path("runs/predict"), "parent folder of the runs")
    name: Text | None = option(None, "folder of the run; default: named after the command")
    resume: bool = option(False, "continue an earlier run: skip files whose outputs are complete")
    shard: str | None = option(None, "2/4: every fourth file from the second, into its own folder")
    exist_ok: bool = option(False, "write into an existing run folder, keeping its other files")
    encoder: Text = option("auto", "FFmpeg's encoder for --save; auto: NVENC if the GPU has it, otherwise x264")
    crf: int = option(23, "quality of --save; lower is better", ge=0, le=51)
    encode_preset: Text = option("ultrafast", "speed preset of the encoder")
    encode_threads: int = option(0, "threads of the encoder; 0: its default", ge=0, le=64)
    save_matte: Literal["gray", "alpha", "green", "blur", "overlay", "packed", "png"] | None = option(
        None,
        "write what a segmenter finds as a video: a gray matte, transparent, before green or a blurred background, "
        "tinted, or packed into the corners of VR video; png: each matte as an image",
    )
    matte_view: Literal["panorama", "rectilinear", "auto"] = option(
        "auto",
        "what a segmenter sees of VR video: each eye as it is, or a rectilinear view as well; auto: that, if fisheye",
    )
    matte_steady: Share = option(1.0, "weight of the frames around one in its matte, where nothing moves")
    matte_eyes: Share = option(0.0, "weight of the other eye in the matte of each, where both see the same")
    matte_holes: float = option(
        0.0, "share of the picture or eye up to which small holes in its matte are filled; 0: fill none", ge=0, le=0.01
    )
    matte_feather: float = option(2.0, "width of the matte's soft edge in pixels", gt=0, le=64)
    show: bool = option(
        False, "show the annotated frames, or what save_matte makes of them, in a window (needs opencv-python)"
    )
    show_views: bool = option(False, "--save and --show: outline the tiles, regions and eyes, dashed")

    if not TYPE_CHECKING:  # type checkers and editors see the fields instead

        def __init__(self, **values: Any) -> None:
            _check_names(values, "option", UsageError)
            _fill(self, values, {})

    @property
    def on_gpu(self) -> bool:
        """Whether `device` is a GPU."""
        return self.device.startswith("cuda")

    @property
    def needs_tracks(self) -> str | None:
        """The first setting that asks for events of tracks, if there is one."""
        return next((name for name in ("zones", "save_events", "events") if getattr(self, name)), None)

    @property
    def gpu(self) -> int | None:
        """Number of the GPU, if `device` names one."""
        number = self.device.partition(":")[2]
        return int(number) if number else None

    def changed(self, *names: str) -> list[str]:
        """Those of the settings that are not as they are by default."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    @field_validator("*", mode="before")
    @classmethod
    def _possible(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept paths as text. Reject booleans as numbers, and text that no file name or message can contain."""
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        kind = cls.model_fields[str(info.field_name)].annotation
        parts = value if isinstance(value, list | tuple) else [value]
        truth = kind is not bool and any(isinstance(part, bool) for part in parts)
        nowhere = value == "" and Path in (kind, *get_args(kind))
        if truth or nowhere or (isinstance(value, str) and UNWRITABLE.search(value)):
            raise ValueError(takes(str(info.field_name)))
        return value

    @field_validator("imgsz", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """Accept 640 and "384x640" as lists."""
        if isinstance(value, str):
            words = value.strip(" []")
            return re.split(r"[x,\s]+", words) if re.fullmatch(r"\d+([x,\s]+\d+)*", words) else value
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("classes", mode="before")
    @classmethod
    def _classes(cls, value: Any) -> Any:
        """Accept 2, "0,2", "0 2" and "car, traffic light" as lists; digits are a number."""
        if isinstance(value, str):
            value = value.strip(" []")
            value = value.split() if re.fullmatch(r"[\d\s]+", value) else value.split(",")
        elif isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list | tuple):
            return value
        parts = [part.strip() if isinstance(part, str) else part for part in value]
        return [int(part) if isinstance(part, str) and part.isdecimal() else part for part in parts if part != ""]

    @field_validator("track", "tls_verify", mode="before")
    @classmethod
    def _switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept the booleans that YAML makes of on and off, and true as the usual tracker."""
        words = (None, "bytetrack") if info.field_name == "track" else ("off", "on")
        return words[value] if isinstance(value, bool) else value

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str | None) -> str | None:
        if name is not None and (re.search(r"[/\\]", name) or not name.strip(". ")):  # "a/b", ".."
            raise ValueError("a folder name, not a path; --project sets the parent folder")
        return name

    @field_validator("shard")
    @classmethod
    def _part(cls, shard: str | None) -> str | None:
        numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard or "1/1")
        if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
            raise ValueError("a part and the number of parts, such as 2/4")
        return shard

    @field_validator("end")
    @classmethod
    def _end_after_start(cls, end: float | None, info: ValidationInfo) -> float | None:
        start = info.data.get("start")
        if end is not None and start is not None and end <= start:
            raise ValueError(f"a number greater than start ({start:g})")
        return end


GROUPS = {
    "Model": "device",
    "Detections": "conf",
    "Views": "tiles",
    "Tracks": "track",
    "Events": "events",
    "Adaptive compute": "adaptive",
    "Source": "vid_stride",
    "Pipeline": "queue",
    "Output": "save",
}
"""Title of each group of settings -> its first field, in the order of `Settings`."""

PRESETS = {
    "latency": "minimum latency: one request at a time, nothing queued, no decoder delay",
    "throughput": "maximum frames per second: long queues, and enough requests to keep every core busy",
}
PRESET_ALIASES = {"vr": "latency"}

COMMAND_LINE = "command line"
VARIABLE = "FRAMEFUSE_"
"""Prefix of the environment variables that the command line reads: FRAMEFUSE_MAX_AGE=0.5."""

RUN = {"source", "model", "preset"}
"""What a file or the environment may name besides settings."""


def preset_values(name: str) -> dict[str, Any]:
    """The settings that a preset changes on this machine; UsageError if there is no such preset."""
    name = PRESET_ALIASES.get(name, name)
    if name == "latency":
        return {"batch": 1, "streams": 1, "slots": 1, "queue": 1, "low_latency": True, "max_age": 0.25}
    if name == "throughput":
        cores = available_cores()
        return {"slots": min(cores, 14) + 2, "queue": 16, "decode_threads": max(2, min(cores // 2, 8))}
    raise UsageError(f"unknown preset {name!r}", remedy=f"choose one of {', '.join((*PRESETS, *PRESET_ALIASES))}")


@dataclass(frozen=True)
class Effective:
    """Settings, and where each of them comes from."""

    settings: Settings
    origin: Mapping[str, str]
    """Field -> "default", "preset latency", "file run.yaml, line 3", "variable FRAMEFUSE_CONF" or "command line"."""
    source: str | list[str] | None = None
    """The source named in the environment or the file, if any."""
    model: str | None = None
    """The model named in the environment or the file, if any."""


def load_settings(
    config: Path | None = None,
    preset: str | None = None,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Effective:
    """Combine defaults, preset, YAML file, environment and command line; later ones win.

    Args:
        config: YAML file of `field: value` lines, plus `source`, `model` and `preset`, so that one file describes a
            whole run. Paths in it are relative to the working directory.
        preset: name of a preset; overrides the preset in the file.
        defaults: defaults of the command, where they differ from those of Settings.
        environment: its variables FRAMEFUSE_<FIELD> are settings, and FRAMEFUSE_SOURCE, _MODEL and _PRESET what the
            file may name too. Others are ignored, because an orchestrator sets some for a service of this name, but not
            those that are nearly the name of a setting.

    Raises:
        ConfigError: the file cannot be read, or has an unknown key or a wrong value.
        UsageError: an override or the preset is unknown, or a value is wrong.
    """
    lines = (_read_yaml(config) if config is not None else {}) | _read_variables(environment)
    run = {key: lines.pop(key) for key in set(lines) & RUN}
    source = _name_in(run, "source", several=True)
    model = _name_in(run, "model")
    preset = preset or _name_in(run, "preset")
    for key, (_, where) in lines.items():
        _check_names([key], where, ConfigError)
    _check_names(overrides, COMMAND_LINE, UsageError)
    layers = [
        {key: (value, "default") for key, value in defaults.items()},
        {key: (value, f"preset {preset}") for key, value in preset_values(preset).items()} if preset else {},
        lines,
        {key: (value, COMMAND_LINE) for key, value in overrides.items()},
    ]
    merged = {key: entry for layer in layers for key, entry in layer.items()}
    origin = {key: merged[key][1] if key in merged else "default" for key in Settings.model_fields}
    settings = Settings.__new__(Settings)
    _fill(settings, {key: value for key, (value, _) in merged.items()}, origin)
    return Effective(settings, origin, source, model)


def settings_from(options: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings from the keyword options of `Pipeline(...)`: fields of Settings, and `preset`. They override `base`.

    Raises:
        UsageError: an option is unknown (suggests the nearest name) or has a wrong value.
    """
    if base is not None and not isinstance(base, Settings):
        raise UsageError(f"settings is {brief(base)}", remedy="pass framefuse.Settings(...), or its fields as options")
    preset = options.get("preset")
    values = base.model_dump(exclude_unset=True) if base else {}
    values |= preset_values(str(preset)) if preset else {}
    return Settings(**values | {key: value for key, value in options.items() if key != "preset"})


_schema = cache(Settings.model_json_schema)


def schema_of(field: str) -> dict[str, Any]:
    """JSON schema of a setting's value, without null."""
    schema = _schema()["properties"][field]
    branches: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return next(branch for branch in branches if branch["type"] != "null")


def takes(field: str) -> str:
    """The allowed values of a setting, as text: "a number from 0 to 1", "one of auto, cpu, cuda"."""
    schema = schema_of(field)
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    kind = schema["type"]
    if kind == "array":
        item = "whole numbers" + _limits(schema["items"]) if "type" in schema["items"] else "class numbers or names"
        return f"one or two {item}" if schema.get("maxItems") == 2 else f"one or more {item}"
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}[kind]
    if schema.get("format") == "path":
        words = "a path"
    return words + _limits(schema)


def _limits(schema: Mapping[str, Any]) -> str:
    words = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to"}
    return "".join(f" {word} {schema[key]:g}" for key, word in words.items() if key in schema)


def group_of(field: str) -> str:
    """Title of the group that a setting belongs to."""
    names = list(Settings.model_fields)
    return [title for title, first in GROUPS.items() if names.index(first) <= names.index(field)][-1]


def _name_in(run: Mapping[str, tuple[Any, str]], key: str, *, several: bool = False) -> Any:
    """The value of source, model or preset in a file, as text; a source may be a list."""
    value, where = run.get(key, (None, ""))
    if several and value and isinstance(value, list):
        return [str(item) for item in value]
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return None if value is None else str(value)
    raise ConfigError(f"{key} is {brief(value)} ({where})", remedy=f"{key} takes a name, path or address")


def _fill(settings: Settings, values: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Validate the values and set them."""
    try:
        BaseModel.__init__(settings, **values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        where = origin.get(field, "")
        allowed = str(first["ctx"]["error"]) if first["type"] == "value_error" else takes(field)
        kind = ConfigError if where.startswith("file ") else UsageError
        if where == COMMAND_LINE:
            message = f"--{field.replace('_', '-')} is {brief(values[field])}"
        else:
            message = f"{field} is {brief(values[field])}" + (f" ({where})" if where else "")
        close = _value_near(field, values[field])
        raise kind(message, remedy=f"{field} takes {allowed}" + (f"; did you mean {close}?" if close else "")) from None


def _value_near(field: str, value: Any) -> str | None:
    """The allowed value that this one may be meant to be: cuda for gpu, fp16 for half."""
    known, text = schema_of(field).get("enum", []), str(value).lower()
    found = VALUES.get(text, "") if value is not True else ""
    return found if found.partition(":")[0] in known else next(iter(nearest(text, known)), None)


def _check_names(names: Iterable[str], where: str, kind: type[UsageError]) -> None:
    for name in names:
        if name in Settings.model_fields:
            continue
        known = [*Settings.model_fields, *sorted(RUN)]
        close = nearest(name, known)
        if name in known:
            remedy = f"{name} is an argument of Pipeline(...) and a key of the YAML file, not a setting"
        elif answer := wish(name, partial(_spelled, python=where == "option")):
            remedy = answer
        else:
            remedy = f"did you mean {close[0]!r}?" if close else "'framefuse config show' lists all settings"
        raise kind(f"unknown setting {name!r} ({where})", remedy=remedy)


def _spelled(field: str, value: str, python: bool) -> str | None:
    """A setting, and its value if it has one, as written in Python or in a file; None if there is no such setting."""
    if field not in Settings.model_fields and field not in RUN:
        return None
    return field if not value else f"{field}={value!r}" if python else f"{field}: {value}"


def _read_variables(environment: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Key -> (value, "variable NAME"); UsageError if a variable has nearly the name of a setting."""
    found = {}
    for name in filter(lambda name: name.startswith(VARIABLE), environment):
        key = name.removeprefix(VARIABLE).lower()
        if key in Settings.model_fields or key in RUN:
            found[key] = environment[name], f"variable {name}"
        elif close := nearest(key, [*Settings.model_fields, *RUN], spelling=True):
            raise UsageError(f"unknown variable {name}", remedy=f"did you mean {VARIABLE}{close[0].upper()}?")
    return found


def _read_yaml(path: Path) -> dict[str, tuple[Any, str]]:
    """Key -> (value, "file NAME, line N") of a YAML file with one flat mapping."""
    from framefuse.common.plain_yaml import read_mapping

    try:
        lines = read_mapping(path.read_bytes())
        return {key: (value, f"file {path}, line {line}") for key, (value, line) in lines.items()}
    except OSError as error:
        near = nearby(path, (".yaml", ".yml"))
        remedy = near if near.startswith("did") else "'framefuse config init FILE' creates one"
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}", remedy=remedy) from error
    except ValueError as error:
        raise ConfigError(f"cannot use {path}: {error}", remedy="write one 'name: value' per line") from error
