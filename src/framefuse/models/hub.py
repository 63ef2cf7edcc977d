"""Fetches models for `framefuse models get`: a name of `KNOWN`, hf://OWNER/REPO, https://..., or a file.

A fetched model has a folder of its own in the user's cache, with its card, which also records where the model is from,
its licence and its SHA-256. From then on its name is enough, and no network is needed.
"""

import io
import json
import os
import re
import shutil
import ssl
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

import yaml

from framefuse.common.files import file_hash, os_errors_as
from framefuse.common.redact import redact_source
from framefuse.errors import CardError, ModelError, UsageError
from framefuse.models import KNOWN, NAME, Known, folder_of_models
from framefuse.models.card import read_card
from framefuse.models.cardfile import read_card_file
from framefuse.models.onnx_file import external_files, read_onnx

TIMEOUT = 30.0
"""Seconds without a byte after which a server counts as silent."""
SOFTMAX = ("detr", "conditional_detr", "table-transformer", "yolos")
"""Model types of transformers whose last class is "no object"."""


@dataclass(frozen=True)
class Fetched:
    """What `get_model` has put into the cache."""

    name: str
    path: Path
    source: str
    """Address and, where the host has one, revision."""
    licence: str
    """"not stated" if neither the host nor the file states it."""
    sha256: str
    size: int
    """Bytes of the ONNX file."""
    problem: str | None
    """What the card still lacks; None: it can be used at once."""


@dataclass(frozen=True)
class Origin:
    """A place that has a model."""

    file: str
    stem: str
    """What to call the model, unless the user says."""
    address: str
    bring: Callable[[str, Path], None]
    """Copies a file, relative to the folder of the model, to a path: ModelError if it cannot be read, FileNotFoundError
    if there is no such file."""
    card: Callable[[], dict[str, Any]] = dict
    """Entries of a card, from what the place says about the model, and perhaps `licence`."""
    sha256: str = ""
    """Of `file`, as the place states it; "" if it does not."""


def get_model(source: str, *, name: str | None = None, sha256: str | None = None) -> Fetched:
    """Fetch a model into the user's cache, where `find_model` finds it by its name.

    Args:
        source: a name of `KNOWN`, hf://OWNER/REPO[@REVISION][/FILE.onnx], https://HOST/FILE.onnx, or a file.
        name: what to call it; default: the known name, or that of the repository or file.
        sha256: what the ONNX file must have; hexadecimal.

    Raises:
        UsageError: an invalid name or address, or plain http without a hash to check.
        ModelError: it cannot be fetched, is not the file that was asked for, or is no ONNX model.
    """
    known = KNOWN.get(source)
    origin = _origin(known.address if known else source, checked=sha256 is not None)
    name = name or (source if known else re.sub(r"[^\w.-]+", "-", origin.stem).lstrip(".-"))
    if not NAME.fullmatch(name):
        raise UsageError(f"a model cannot be called {name!r}", remedy="use letters, digits, '-', '_' and '.' in --name")
    folder = folder_of_models()
    remedy = "free some space, or set XDG_CACHE_HOME to a writable folder"
    with os_errors_as(ModelError, f"{redact_source(source)} cannot be put into {folder}", remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            staged = Path(scratch, name)
            staged.mkdir()
            done = _stage(origin, staged, name, sha256, known)
            with suppress(FileNotFoundError):
                os.rename(folder / name, Path(scratch, "earlier"))
            os.rename(staged, folder / name)
    path, problem = folder / name / f"{name}.onnx", None
    try:
        read_card(path)
    except CardError as error:
        problem = "\n".join(filter(None, (error.message, error.remedy)))
    return Fetched(name, path, origin.address, *done, problem)


def _stage(origin: Origin, folder: Path, name: str, sha256: str | None, known: Known | None) -> tuple[str, str, int]:
    """Bring the model and its card into a folder; returns licence, hash and size."""
    path = folder / f"{name}.onnx"
    try:
        origin.bring(origin.file, path)
        found = file_hash(path)
        for wanted in filter(None, (sha256, origin.sha256)):
            if found != wanted.lower():
                message = f"{origin.address} is not the file that it should be: its SHA-256 is {found}, not {wanted}"
                remedy = "try again; if the hash still differs, compare the hash with the one that its author publishes"
                raise ModelError(message, remedy=remedy)
        for external in external_files(path):
            if external == PureWindowsPath(external).name:  # no other folder
                origin.bring(external, folder / external)
    except FileNotFoundError as error:
        raise ModelError(f"{origin.address} has no file {error}", remedy="check the address") from error
    metadata = read_onnx(path).metadata
    card = origin.card()
    about = card.get("about", {})
    stated = card.pop("licence", None) or about.get("licence") or metadata.get("license") or "not stated"
    licence = known.licence if known else str(stated)
    card["about"] = {**about, "source": origin.address, "licence": licence, "sha256": found}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(card, sort_keys=False), encoding="utf-8")
    return licence, found, path.stat().st_size


def _origin(source: str, checked: bool) -> Origin:
    """Where a model is; `checked` says that the hash of the file is known in advance."""
    if source.startswith("hf://"):
        return _on_hub(source)
    if source.startswith("https://") or (source.startswith("http://") and checked):
        return _on_web(source, redact_source(source))
    if source.startswith("http://"):
        message = f"{redact_source(source)} is not protected against changes on the way"
        raise UsageError(message, remedy="use https, or give the hash that the file must have with --sha256")
    path = Path(source)
    if not path.is_file():
        message = f"there is no file {path}, and no known model of that name"
        raise ModelError(message, remedy=f"pass a file, hf://OWNER/REPO, https://..., or one of {', '.join(KNOWN)}")

    def bring(file: str, target: Path) -> None:
        shutil.copyfile(path.with_name(file), target)

    def card() -> dict[str, Any]:
        return read_card_file(path.with_suffix(".yaml")).model_dump(mode="json", exclude_none=True)

    return Origin(path.name, path.name.removesuffix(".onnx"), str(path.absolute()), bring, card)


def _on_web(url: str, shown: str, token: str | None = None) -> Origin:
    """A file behind an address, which messages name as `shown`, without secrets, and the files beside it."""
    name = unquote(PurePosixPath(urlsplit(url).path).name)
    if not name:
        raise UsageError(f"{shown} names no file", remedy="give the address of the .onnx file itself")

    def bring(file: str, target: Path) -> None:
        with target.open("wb") as saved:
            wanted = _read(url if file == name else urljoin(url, file), saved, shown, token)
        if wanted is not None and int(wanted) != target.stat().st_size:
            message = f"{shown} ended after {target.stat().st_size:,} of {int(wanted):,} bytes"
            raise ModelError(message, remedy="try again")

    return Origin(name, name.removesuffix(".onnx"), shown, bring)


def _on_hub(address: str) -> Origin:
    """A repository on Hugging Face. The variables HF_TOKEN and HF_ENDPOINT apply."""
    parts = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w.-]+))?((?:/[\w.-]+)*/[\w.-]+\.onnx)?/?", address)
    if parts is None:
        raise UsageError(f"{address} is no address of a model", remedy="use hf://OWNER/REPO[@REVISION][/FILE.onnx]")
    repository, revision = parts[1], parts[2] or "main"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")
    try:
        facts = _json(f"{endpoint}/api/models/{repository}/revision/{revision}?blobs=true", address, token)
    except FileNotFoundError as error:
        message = f"{address}: there is no such repository or revision, or it is private"
        remedy = "check the address; private repositories need the variable HF_TOKEN"
        raise ModelError(message, remedy=remedy) from error
    files = {one["rfilename"]: one for one in facts["siblings"]}
    wanted = [parts[3].lstrip("/")] if parts[3] else ["onnx/model.onnx", "model.onnx"]
    file = next((name for name in wanted if name in files), None)
    if file is None:
        found = [name for name in files if name.endswith(".onnx")]
        remedy = f"it has {', '.join(found[:5])}: hf://{repository}/{found[0]}" if found else EXPORT
        raise ModelError(f"{address} has no file {' or '.join(wanted)}", remedy=remedy)
    root, shown = f"{endpoint}/{repository}/resolve/{facts['sha']}/", f"hf://{repository}@{facts['sha']}/{file}"

    def card() -> dict[str, Any]:
        stated: list[dict[str, Any]] = []
        for name in ("config.json", "preprocessor_config.json"):
            try:
                stated.append(_json(root + name, shown, token))
            except FileNotFoundError:
                stated.append({})
        return {**card_of_transformers(*stated), "licence": (facts.get("cardData") or {}).get("license")}

    stem, sha256 = repository.partition("/")[2].removesuffix(".onnx"), (files[file].get("lfs") or {}).get("sha256", "")
    return replace(_on_web(root + file, shown, token), stem=stem, sha256=sha256, card=card)


def _read(url: str, target: BinaryIO, shown: str, token: str | None) -> str | None:
    """Copy what an address has; returns the length that the server states. FileNotFoundError: there is none."""
    request = Request(url, headers={"User-Agent": "framefuse"})
    if token:  # for the first host, not for those that it redirects to
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:
            while piece := answer.read(1 << 20):
                target.write(piece)
            length: str | None = answer.headers.get("Content-Length")
            return length
    except (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
            if error.code == 404:
                raise FileNotFoundError(PurePosixPath(urlsplit(url).path).name) from error
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise ModelError(f"{shown} cannot be fetched: {reason}", remedy=ASIDE) from error


def _json(url: str, shown: str, token: str | None) -> Any:
    answer = io.BytesIO()
    _read(url, answer, shown, token)
    try:
        return json.loads(answer.getvalue())
    except ValueError as error:
        raise ModelError(f"{shown}: {url} is not JSON", remedy=ASIDE) from error


def card_of_transformers(config: Mapping[str, Any], images: Mapping[str, Any]) -> dict[str, Any]:
    """The card of a detector of the library transformers.

    Args:
        config: config.json.
        images: preprocessor_config.json: what its image processor does.
    """
    card: dict[str, Any] = {}
    if names := config.get("id2label"):
        numbered = {int(number): str(name) for number, name in names.items()}
        # COCO has gaps in its numbers; scores of these classes are there, but mean nothing.
        card["names"] = [numbered.get(number, f"unused {number}") for number in range(max(numbered) + 1)]
    if config.get("model_type") in SOFTMAX:
        card["activation"] = "softmax"
    size = images.get("size")
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        card |= {"imgsz": [size["height"], size["width"]], "fit": "stretch", "interpolation": "antialias"}
    if images.get("do_rescale", True) and images:
        unit = 1 / images.get("rescale_factor", 1 / 255)
        mean, std = [0.0] * 3, [1.0] * 3
        if images.get("do_normalize"):
            mean, std = images["image_mean"], images["image_std"]
        card |= {"mean": [round(value * unit, 6) for value in mean], "std": [round(value * unit, 6) for value in std]}
    return card


EXPORT = "it has no ONNX file; export the model, or look for a repository that has one"
ASIDE = "check the address and the network; or fetch the file elsewhere and pass it: framefuse models get FILE"
