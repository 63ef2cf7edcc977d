"""Parquet: one row per detection, for pandas, polars, DuckDB and `framefuse sweep`.

A Parquet file cannot be read before its end is written. Until then the rows lie in <stem>.arrows.part, an Arrow stream
that can be read as far as it goes; `close` makes <stem>.parquet of it, or `framefuse repair` after a kill.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from framefuse.common.version import __version__
from framefuse.errors import CapabilityError, DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import RecordSink, tracks_of
from framefuse.sinks.run_folder import encode, sink_errors, written_whole

SCHEMA = 1
"""Version of the columns; incremented when one changes its meaning or is removed."""
ABOUT = b"framefuse"
"""Key of the file's metadata: JSON with schema, version, source, names (of the classes), model and options."""
FLOATS = "list<element: float>"
COLUMNS = {
    "source": "string", "frame": "int64", "seconds": "float64", "pts": "int64", "time_base": "string",
    "width": "int32", "height": "int32", "inferred": "bool_",
    "class_id": "int32", "class": "string", "confidence": "float32",
    "x1": "float32", "y1": "float32", "x2": "float32", "y2": "float32", "tracker_id": "int64", "view": "string",
    "mask": "string", "keypoints": FLOATS, "xywhr": FLOATS,
}  # fmt: skip
"""From class_id on null in the one row of a frame without detections. Also null: an unknown time, no track, no view,
and what the model does not find. `inferred` is false for a frame that the model has not seen. A mask has the size of
the frame; its run lengths are compressed as in COCO. `keypoints` are x, y and confidence of each, `xywhr` an oriented
box. A classifier gives the best class of each frame, without a box."""
SHAPES = "mask", "keypoints", "xywhr"
READ = [name for name in COLUMNS if name not in ("seconds", "class", "inferred", *SHAPES)]
STREAM = "arrows.part"
FRAMES, ROWS = 30, 8192
"""What waits in memory before it is written: so many frames, or so many rows."""
GROUP = 1 << 16
"""Rows of a row group, which is what completing a file holds in memory."""


def load() -> Any:
    """The package pyarrow, with its module parquet. CapabilityError: the extra `parquet` is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise CapabilityError("package pyarrow is not installed", remedy="pip install 'framefuse[parquet]'") from error
    return pyarrow


class ParquetSink(RecordSink):
    """Writes <stem>.parquet with COLUMNS: a row for each detection, and one for each frame without any, so that the
    file has every frame. Boxes are in source pixels, unrounded.

    A kill loses the last FRAMES frames at most. On a full disk what was written stays in <stem>.arrows.part.
    CapabilityError: the extra `parquet` is not installed.
    """

    name, stream = "parquet", STREAM

    def __init__(self) -> None:
        super().__init__()
        self._arrow = load()
        self._waiting: list[Any] = []

    def _header(self) -> bytes:
        context = self._context
        about = {"schema": SCHEMA, "version": __version__, "source": context.source.uri, "names": context.names}
        floats = self._arrow.list_(self._arrow.float32())
        self._schema = self._arrow.schema(
            {name: floats if kind == FLOATS else getattr(self._arrow, kind)() for name, kind in COLUMNS.items()},
            metadata={ABOUT: encode(json.dumps({**about, **context.run}, ensure_ascii=False))},
        )
        return bytes(self._schema.serialize())

    def write(self, result: Result, frame: Frame | None) -> None:
        info, found = result.frame, result.detections
        facts = (encode(info.source_id).decode(), info.index, info.seconds, info.pts, str(info.time_base))
        columns: list[Any] = [
            [fact] * max(1, len(found)) for fact in (*facts, info.width, info.height, result.inferred)
        ]
        if len(found):
            names = [encode(found.name(number)).decode() for number in found.class_id.tolist()]
            views = [None] * len(found) if found.view is None else found.view.tolist()
            columns += [found.class_id, names, found.confidence, *found.xyxy.T, tracks_of(found)]
            columns.append([None if number is None else encode(result.views[number].tag).decode() for number in views])
            none = [None] * len(found)
            columns.append(none if found.runs is None else [mask["counts"] for mask in found.segmentations()])
            flat = (found.keypoints, found.xywhr)
            columns += [none if part is None else part.reshape(len(found), -1).tolist() for part in flat]
        elif result.classification is not None:
            number, confidence = result.classification.class_id[:1], result.classification.confidence[:1]
            columns += [number, [encode(result.classification.top(1)[0][0]).decode()], confidence]
        columns += [[None]] * (len(COLUMNS) - len(columns))
        arrays = [self._arrow.array(*column) for column in zip(columns, self._schema.types, strict=True)]
        self._waiting.append(self._arrow.record_batch(arrays, schema=self._schema))
        if len(self._waiting) >= FRAMES or sum(batch.num_rows for batch in self._waiting) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        (batch,) = self._arrow.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting = []
        stream = self._arrow.BufferOutputStream()
        options = self._arrow.ipc.IpcWriteOptions(compression="lz4")
        with self._arrow.ipc.new_stream(stream, self._schema, options=options) as writer:
            writer.write_batch(batch)
            end = stream.tell()
        self._file.append(stream.getvalue()[self._begin : end].to_pybytes())

    def close(self) -> None:
        try:
            self._flush()
        finally:
            super().close()

    def _complete(self, stream: Path) -> None:
        complete(stream)


def complete(stream: Path) -> int:
    """Make <stem>.parquet of what there is of <stem>.arrows.part, and remove that; the number of rows.

    0: it has none, or is not of this sink, and stays. SinkError: it cannot be written; the stream stays.
    """
    arrow, count = load(), 0
    with sink_errors(stream), stream.open("rb") as file:
        batches = _batches(arrow, file)
        first = next(batches, None)
        if first is None or ABOUT not in (first.schema.metadata or {}):
            return 0
        with (
            written_whole(stream.with_name(stream.name.removesuffix(STREAM) + "parquet"), stream) as out,
            arrow.parquet.ParquetWriter(out, first.schema, compression="zstd") as writer,
        ):
            group: list[Any] = []
            for batch in chain([first], batches, [None]):
                if group and (batch is None or sum(one.num_rows for one in group) >= GROUP):
                    writer.write_table(arrow.Table.from_batches(group))
                    group = []
                if batch is not None:
                    group.append(batch)
                    count += batch.num_rows
    return count


def merge(parts: Sequence[tuple[Path, range, int]], out: Path) -> None:
    """One file of frames of several, with the numbers of each part shifted. SinkError: it cannot be written."""
    arrow = load()
    sources = {path: arrow.parquet.ParquetFile(path) for path in {path for path, _, _ in parts}}
    schema = sources[parts[0][0]].schema_arrow
    place = schema.get_field_index("frame")
    read = lru_cache(len(sources))(lambda path, group: sources[path].read_row_group(group))
    with written_whole(out) as file, arrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for path, frames, shift in parts:
            about = sources[path].metadata
            for group in range(about.num_row_groups if frames else 0):
                known = about.row_group(group).column(place).statistics
                if known.max < frames.start or known.min >= frames.stop:
                    continue
                table = read(path, group)
                begin, end = np.searchsorted(table.column(place).to_numpy(), (frames.start, frames.stop))
                table = table.slice(begin, end - begin)
                shifted = arrow.compute.add(table.column(place), shift)
                writer.write_table(table.set_column(place, schema.field(place), shifted))


def _batches(arrow: Any, file: BinaryIO) -> Iterator[Any]:
    """The whole record batches of a stream that may end anywhere."""
    try:
        yield from arrow.ipc.open_stream(file)
    except arrow.ArrowInvalid:
        return
    except OSError as error:
        if error.errno is not None:  # of the disk; that of a cut stream has none
            raise


@dataclass(frozen=True, eq=False)
class BoxTable:
    """The n detections of a Parquet file as arrays, and its f frames, with and without detections.

    `table[k]` is the Result of the k-th frame; iteration gives all of them.
    """

    frames: Sequence[FrameInfo]
    """(f,) in the order of the file."""
    starts: NDArray[np.int64]
    """(f + 1,): the detections of frame k are the rows starts[k]:starts[k + 1]."""
    detections: Detections
    """All n. `tracker_id` is None if none has a track, and `view`, which indexes `tags`, if none has a view."""
    tags: Sequence[str]
    """Names of the views."""
    about: Mapping[str, Any]
    """What the file says of itself, see ABOUT."""

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int) -> Result:
        number = range(len(self))[number]
        found = self.detections[self.starts[number] : self.starts[number + 1]]
        found.view = None  # it indexes the views of a Result, whose regions the file does not have
        return Result(self.frames[number], found)


def read_boxes(path: str | Path) -> BoxTable:
    """Read a file of the sink, or its unfinished <stem>.arrows.part.

    Raises:
        CapabilityError: the extra `parquet` is not installed.
        SourceError: it cannot be opened.
        DecodeError: it is damaged, the sink has not written it, or that of another version has.
    """
    arrow, path = load(), Path(path)
    try:
        with path.open("rb") as file:
            if path.name.endswith(STREAM):
                table = arrow.Table.from_batches(_batches(arrow, file)).select(READ)
            else:
                # Arrow's own file: its threads may drop one of Python's when the interpreter has ended, which aborts.
                with arrow.OSFile(os.fsencode(path)) as own:
                    table = arrow.parquet.ParquetFile(own, read_dictionary=["source", "view"]).read(READ)
        about = json.loads((table.schema.metadata or {})[ABOUT])
        if about["schema"] != SCHEMA:
            raise KeyError(about["schema"])
        return _boxes(table, about)
    except (arrow.ArrowException, KeyError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # that of a damaged page has none
            raise SourceError(f"cannot read {path}: {os.strerror(error.errno)}", remedy="check the path") from error
        wanted = f"a whole Parquet file of framefuse with schema {SCHEMA}"
        raise DecodeError(f"{path} is not {wanted}", remedy="write one with --save-parquet") from error


def _boxes(table: Any, about: Mapping[str, Any]) -> BoxTable:
    def numbers(column: Any) -> NDArray[Any]:
        return np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False))

    def texts(name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Index of the text of each row, -1 for null, and the texts."""
        column = table[name].dictionary_encode().unify_dictionaries().combine_chunks()
        return numbers(column.indices).astype(np.int64), column.dictionary.to_pylist()

    numeric = [name for name in READ if COLUMNS[name] != "string"]
    columns = {name: numbers(table[name].combine_chunks()) for name in numeric}
    index, (source, _), (view, tags) = columns["frame"], texts("source"), texts("view")
    new = np.ones(len(index), bool)
    new[1:] = (index[1:] != index[:-1]) | (source[1:] != source[:-1])
    first = table.take(np.flatnonzero(new)).select(["frame", "pts", "time_base", "width", "height", "source"])
    base = cache(Fraction)
    rows = zip(*first.to_pydict().values(), strict=True)
    frames = [FrameInfo(i, pts, base(ticks), *rest) for i, pts, ticks, *rest in rows]
    boxed = columns["class_id"] >= 0
    counts = np.bincount(np.cumsum(new) - 1, boxed, len(frames)).astype(np.int64)
    ids = columns["tracker_id"][boxed]
    boxes = np.stack([columns[side][boxed] for side in ("x1", "y1", "x2", "y2")], axis=1)
    names = {int(number): name for number, name in about["names"].items()}
    found = Detections(boxes, columns["confidence"][boxed], columns["class_id"][boxed].astype(np.int64), names)
    found.tracker_id = ids if (ids >= 0).any() else None
    found.view = view[boxed] if tags else None
    return BoxTable(frames, np.concatenate([[0], np.cumsum(counts)]), found, tags, about)
