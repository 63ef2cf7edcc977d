"""Answers to a name that does not exist: what is close to it in spelling and meaning, and what other tools call it."""

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path

GENERIC = {"no", "save", "show", "max", "min", "num"}
"""Words that say little about the meaning of an option: --no-such-option is not --no-show."""
WISHES = {
    "conf_thres conf_threshold confidence_threshold score_threshold threshold thres min_conf": "use {conf}",
    "iou_thres iou_threshold nms_iou nms_thres nms_threshold nms overlap": "use {iou}",
    "img img_size image_size input_size size resolution": "use {imgsz}",
    "batch_size bs": "use {batch}",
    "weights checkpoint ckpt": "use {model}, with an ONNX file",
    "class class_ids filter_classes": "use {classes}",
    "class_agnostic class_agnostic_nms": "use {agnostic_nms}",
    "gpu gpu_id cuda use_gpu use_cuda": "use {device=cuda}",
    "half fp16 float16": "use {precision=fp16}",
    "int8": "use {precision=int8}",
    "tensorrt trt": "use {engine=tensorrt}",
    "backend runtime provider providers": "use {engine}",
    "workers num_workers": "use {decode_threads}",
    "frame_skip skip_frames frame_stride stride every fps frame_rate": "use {vid_stride} to read every n-th frame",
    "frames max_frames num_frames duration": "use {end}, a time in seconds",
    "save_video save_vid save_img save_image save_images": "use {save}",
    "nosave no_save": "annotated frames are written only with {save}",
    "save_labels labels": "use {save_txt}",
    "save_conf": "JSON and CSV always contain it; for labels, use YoloTxtSink(confidence=True) in Python",
    "o output out output_dir out_dir outdir save_dir": "use {project} for the parent folder, {name} for the run's",
    "view_img view display imshow window show_window": "use {show}",
    "stream": "results always arrive one frame at a time",
    "stream_buffer": "live sources keep only the newest frame; {max_age} limits its age",
    "cfg": "use {config}",
    "data": "class names come from the model or its card; 'framefuse val' takes ground truth",
    "verbose": "use --log-level debug on the command line, or the logger 'framefuse' in Python",
    "webcam camera cam": "pass the number of the camera as the source, such as 0",
    "plots": "'framefuse val' draws charts",
    "mode": "for mattes, use {save_matte}; otherwise leave it out: the command says what to do",
    "task": "leave it out: the command says what to do, and the model or its card what to find",
    "tracker tracking persist": "use {track=bytetrack}",
    "track_buffer_frames lost_track_buffer track_thresh": "use {track_buffer} and {track_high}, in seconds and 0..1",
    "line_thickness": "use {line_width}",
    "show_labels show_conf": "both are drawn unless {hide_labels} or {hide_conf} is given",
    "font_size": "the size of labels follows that of the frame; in Python, draw on the array from Frame.to_bgr()",
    "augment tta": "test-time augmentation is not there yet",
    "retina_masks": "leave it out: instance masks always have the size of the frame",
    "region crop": "use {roi} x,y,width,height",
    "zone zones_file polygon polygons line lines counter count_line line_zone": "use {zones} FILE",
    "sahi slice slicing": "use {tiles} 2x3",
}
"""Options of other tools -> what to use here: {conf} is an option, {device=cuda} an option with a value."""
VERBS = {
    "detect infer inference segment": "framefuse predict SOURCE MODEL",
    "track": "framefuse predict SOURCE MODEL --track bytetrack",
    "train fit finetune": "framefuse trains no models: export a trained one to ONNX for framefuse predict SOURCE MODEL",
    "eval evaluate test validate": "framefuse val MODEL --data TRUTH",
    "benchmark": "framefuse bench engines MODEL",
    "convert quantize": "framefuse build MODEL --precision int8 --calib SOURCE",
    "download fetch pull": "framefuse models get NAME",
}
"""Verbs of other tools -> what to type here."""
VALUES = {"gpu": "cuda", "0": "cuda:0", "half": "fp16", "float16": "fp16", "float32": "fp32", "trt": "tensorrt"}
"""Values of other tools -> ours."""


def wish(name: str, spell: Callable[[str, str], str | None]) -> str | None:
    """What to use instead of an option of another tool; None if nothing is known. `spell` says how the user writes an
    option and its value, which may be empty; None if there is no such option."""
    key = name.strip("-").lower().replace("-", "_")
    answer = next((answer for names, answer in WISHES.items() if key in names.split()), None)
    for place, field, value in re.findall(r"(\{(\w+)=?(\w*)\})", answer or ""):
        option = spell(field, value)
        answer = option and answer and answer.replace(place, option)
    return answer


def nearest(name: str, known: Iterable[str], most: int = 1, *, spelling: bool = False) -> list[str]:
    """The known names that this one may be meant to be, best first.

    They are spelt almost alike or, unless only the spelling counts, every word with a meaning in one of the two has its
    like in the other: max_detections and max_det, but not no_such_option and no_show.
    """
    found, wanted = [], _words(name)
    for other in known:
        words, close = _words(other), _ratio("".join(wanted), "".join(_words(other)))
        shares = [_share(wanted, words), _share(words, wanted)]
        if close >= 0.85 or (1 in shares and not spelling):
            found.append((-close - sum(shares), other))
    return [other for _, other in sorted(found)[:most]]


def nearby(path: Path, suffixes: Collection[str]) -> str:
    """What to do about a file that does not exist: close names in its folder with these suffixes, or the first ones."""
    folder, upper = path.parent, path.parent.parent
    with suppress(OSError):
        if not folder.is_dir():
            near = nearest(folder.name, os.listdir(upper)) if upper.is_dir() else []
            return f"the folder {folder} does not exist" + (f", but {upper / near[0]} does" if near else "")
        files = sorted(name for name in os.listdir(folder) if Path(name).suffix.lower() in suffixes)
        stems = nearest(path.stem, {Path(name).stem for name in files}, 3)
        if near := [str(folder / name) for stem in stems for name in files if Path(name).stem == stem][:3]:
            return f"did you mean {' or '.join(near)}?"
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        return "check the path" + (f"; the folder has {', '.join(files[:3])}{more}" if files else "")
    return "check the path"


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())


def _share(words: list[str], others: list[str]) -> float:
    """Part of the words with a meaning that have their like among the others."""
    rest = [other for other in others if other not in GENERIC]
    alike = [any(_alike(word, other) for other in rest) for word in words if word not in GENERIC]
    return sum(alike) / max(1, len(alike))


def _alike(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return one == other or (len(short) >= 3 and (long.startswith(short) or _ratio(one, other) >= 0.75))


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
