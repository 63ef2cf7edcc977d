"""Several decoders of one video give the frames that one gives, in order, and hold no more of them than they may."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import fake_gpu
from framefuse import Pipeline
from framefuse.common import machine
from framefuse.config import Settings, settings_from
from framefuse.errors import DecodeError, SourceError
from framefuse.kernels.masks.grids import TOGETHER
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime import readers
from framefuse.runtime.ahead import Ahead
from framefuse.runtime.memory import predict, surface
from framefuse.runtime.plan import RunPlan, plan_run
from framefuse.runtime.readers import open_sources
from framefuse.sources import open_source, segments
from framefuse.sources.cuts import Cuts
from framefuse.sources.ffmpeg import HostDecoder
from framefuse.sources.files import Video
from framefuse.sources.segments import Segmented, Spacing, spacing
from framefuse.sources.source import SourceOptions
from media import cuttable, damage_units, rgb_image, scramble, truncate

FRAMES = 100


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 0.5)
    monkeypatch.setattr(segments, "AHEAD_WORTH", 2)


def odd(path: Path) -> Path:
    """Key frames at odd distances, B frames between."""
    with av.open(str(path), "w") as container:
        options = {"g": "1000", "bf": "3", "forced-idr": "1", "x264-params": "scenecut=0"}
        stream: Any = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(rgb_image(number, 160, 120), format="rgb24")
            if number in (1, 2, 13, 20, 41, 43, 84):
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def opened(path: Path, waiting: int = 100, count: int = 3, **options: Any) -> Ahead:
    (source,) = open_sources(Segmented(path, count, waiting), Settings(device="cpu", **options), 1)
    assert isinstance(source, Ahead)
    return source


def same(path: Path, waiting: int = 100, **options: Any) -> list[str]:
    """Compare all that is known of frames and the file; the notes."""
    source, alone = opened(path, waiting, **options), open_source(path, SourceOptions(**options))
    assert source.info.frames == alone.info.frames
    number = 0
    for number, (one, other) in enumerate(zip(source, alone, strict=True), 1):
        for name in ("index", "pts", "time_base", "rotation", "source_id", "connection", "matrix", "full_range"):
            assert getattr(one, name) == getattr(other, name), (number, name)
        for plane, wanted in zip(one.planes, other.planes, strict=True):
            np.testing.assert_array_equal(plane, wanted)
    assert number
    assert source.info.notes == alone.info.notes
    assert source.info.drops == alone.info.drops
    assert not threads()
    return alone.info.notes


def planned(source: Any, **options: Any) -> RunPlan:
    return plan_run(read_card(find_model("body-n")), settings_from({"device": "cpu", **options}), source, None)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ff-decode")]


@pytest.mark.parametrize("waiting", [1, 7, 100])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {}),
        ("a.mkv", {"rate": Fraction(30000, 1001)}),
        ("vp9.webm", {"codec": "libvpx-vp9", "options": {"g": "10"}}),
        ("hevc.mp4", {"codec": "libx265", "options": {"x265-params": "keyint=10:open-gop=0:log-level=none"}}),
        ("ten.mp4", {"pixel_format": "yuv420p10le"}),
        ("late.mp4", {"pts": range(500, 700, 2)}),
    ],
)
def test_frames_are_those_of_one_decoder(tmp_path: Path, name: str, options: dict[str, Any], waiting: int) -> None:
    same(cuttable(tmp_path / name, **options), waiting)


@pytest.mark.parametrize("options", [{}, {"start": 0.5}, {"end": 2.9}, {"start": 1.04, "end": 3.2}, {"vid_stride": 3}])
def test_odd_distances_and_parts(tmp_path: Path, options: dict[str, Any]) -> None:
    path = odd(tmp_path / "odd.mp4")
    same(path, **options)
    same(path, 2, **options)


@pytest.mark.parametrize("waiting", [1, 50])
@pytest.mark.parametrize("stride", [1, 3])
def test_frames_of_a_gpu_keep_their_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, stride: int
) -> None:
    """Those that wait, and those that a run holds at the same time, have memory of their own. However many parts the
    video has, there are as many decoders as readers: for the next part they are flushed, and nothing is read twice."""
    module, decoders, flushed, sought = fake_gpu.codec(), list[Any](), list[Any](), list[Any]()
    create, decode, seek = module.CreateDecoder, fake_gpu.Decoder.Decode, Video._seek
    module.CreateDecoder = lambda **options: decoders.append(create(**options)) or decoders[-1]

    def decoding(decoder: Any, data: Any) -> Any:
        if not getattr(data, "bsl", 0):
            flushed.append(decoder)
        return decode(decoder, data)

    def seeking(video: Video, *given: Any) -> None:
        sought.append(video)
        seek(video, *given)

    monkeypatch.setattr(fake_gpu.Decoder, "Decode", decoding)
    monkeypatch.setattr(Video, "_seek", seeking)
    fake_gpu.install(monkeypatch, module)
    opened_segments, open_segments = list[Any](), Segmented.open
    monkeypatch.setattr(
        Segmented, "open", lambda *given: opened_segments.append(open_segments(*given)) or opened_segments[-1]
    )
    path, held = odd(tmp_path / "odd.mp4"), deque[tuple[Any, Any]]()
    settings = settings_from({"device": "cuda", "vid_stride": stride})
    (source,) = open_sources(Segmented(path, 2, waiting), settings, 1)
    notes = source.info.notes

    def give_back() -> None:
        frame, expected = held.popleft()
        for name in ("index", "pts", "time_base"):
            assert getattr(frame, name) == getattr(expected, name)
        luma, chroma = (np.array(plane) for plane in frame.planes)
        for plane, wanted in zip((luma, chroma[:, :, 0], chroma[:, :, 1]), expected.planes, strict=True):
            np.testing.assert_array_equal(plane, wanted)
        frame.lease.release()

    for pair in zip(source, open_source(path, SourceOptions(vid_stride=stride)), strict=True):
        held.append(pair)
        if len(held) > settings.queue + 3:
            give_back()
    while held:
        give_back()
    assert "decoded by NVDEC (h264)" in notes and not threads()
    parts = len(opened_segments[-1].segments.counts)  # of the decoder process
    assert (parts, len(decoders)) == (4, 2)
    assert parts - 2 <= len(sought) < parts, "the second may begin in the first second"
    assert len(flushed) == parts - len(decoders) + 1, "and at the end of the file"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize(("first", "last"), [(0.2, 0.22), (0.3, 0.303), (0.393, 0.396), (0.7, 0.72)])
def test_damage(tmp_path: Path, name: str, first: float, last: float) -> None:
    """With one thread: what FFmpeg conceals otherwise depends on which is faster."""
    path = scramble(cuttable(tmp_path / name, frames=300), first, last)
    assert any("damaged" in note for note in same(path, decode_threads=1))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("numbers", [(100,), (100, 120), (118, 120), (40, 103), (100, 103, 200), range(100, 300)])
def test_a_segment_that_is_decoded_again_counts_once(tmp_path: Path, name: str, numbers: Sequence[int]) -> None:
    """It is where its key frame is damaged; cuts are at every 20th packet."""
    path = damage_units(cuttable(tmp_path / name, frames=300), *numbers)
    alone, source = open_source(path, SourceOptions(decode_threads=1)), opened(path, decode_threads=1)
    kept, frames = max(frame.index for frame in alone), len(list(source))
    assert source.info.drops == alone.info.drops == {"corrupt": len(numbers)}
    stated = f"the header states 300 frames, {frames} could be decoded"
    if len(numbers) == 200:  # to the end: the last segments have no frames
        assert (kept, frames) == (99, 100)
        stated = stated if name == "a.mp4" else "the header states 12.00 s, the video ends after 4.00 s"
    assert (stated in source.info.notes) == (name == "a.mp4" or len(numbers) == 200)


def test_no_cut_is_where_a_key_frame_is_damaged_but_behind_it(tmp_path: Path) -> None:
    cuts = Cuts(damage_units(cuttable(tmp_path / "a.mp4"), 40, lengths=True), SourceOptions())
    assert cuts.after(Fraction("1.3")) == 2, "and not 1.6, at frame 40"
    cuts.close()


def test_a_truncated_video(tmp_path: Path) -> None:
    path = truncate(cuttable(tmp_path / "a.mkv", frames=400), 0.7)
    assert any("header states" in note for note in same(path))


def test_no_more_frames_wait_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, wrap = list[int](), HostDecoder.wrap

    def counted(self: HostDecoder, *given: Any, **more: Any) -> Any:
        decoded.append(1)
        return wrap(self, *given, **more)

    monkeypatch.setattr(HostDecoder, "wrap", counted)
    source = opened(cuttable(tmp_path / "a.mp4", frames=200), 4, 3)
    for number, _ in enumerate(source, 1):
        if number % 20 == 3:
            before = -1
            while before != len(decoded):  # until all that may be decoded has been
                before = len(decoded)
                time.sleep(0.05)
            assert number < len(decoded) <= number + 3 * (4 + 1)
    assert len(decoded) == 200


def test_closing_in_the_middle_from_another_thread(tmp_path: Path) -> None:
    path = cuttable(tmp_path / "a.mp4", frames=400)
    for after in (0, 1, 30):
        source, seen = opened(path, 5), list[int]()

        def read(source: Ahead, seen: list[int]) -> None:
            seen.extend(frame.index for frame in source)

        for _ in range(after):
            next(iter(source))
        reader = threading.Thread(target=read, args=(source, seen))
        reader.start()
        source.close()
        reader.join(5)
        assert not reader.is_alive() and not threads()
        source.close()
        assert seen == list(range(after, after + len(seen)))


def test_an_error_comes_when_it_is_its_turn(tmp_path: Path) -> None:
    path, seen, failed = cuttable(tmp_path / "a.mp4"), list[int](), threading.Event()
    source, whole = opened(path, 3, 2), opened(path)
    first = len(list(whole._source.segment() or ()))
    whole.close()

    def fails() -> Any:
        failed.set()
        raise SourceError(f"cannot read {path}")

    source._source._open = fails  # type: ignore[assignment]
    with pytest.raises(SourceError, match=r"a\.mp4"):
        for frame in source:
            seen.append(frame.index)
            # The first decoder cannot end, and be reused, before: only three of its frames wait.
            assert len(seen) == 1 or failed.wait(30), "the second decoder fails long before its turn"
    assert seen == list(range(first)) and first == 20
    assert not threads()


def test_nothing_that_can_be_decoded(tmp_path: Path) -> None:
    path = cuttable(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size:
                data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(data)
    with pytest.raises(DecodeError, match="nothing in"):
        list(open_source(path))
    with pytest.raises(DecodeError, match="nothing in"):
        list(opened(path))


def test_leaving_a_run_early_ends_all_decoders(tmp_path: Path) -> None:
    path = cuttable(tmp_path / "a.mp4", frames=400)
    with Pipeline(path, "squares", readers=4, imgsz=[160], vid_stride=2) as pipeline:
        assert isinstance(pipeline.sources[0], Ahead)
        for _ in zip(range(30), pipeline, strict=False):
            pass
    assert not threads()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_report_counts_frames_as_of_one_decoder(tmp_path: Path, stride: int) -> None:
    path, found = cuttable(tmp_path / "a.mp4"), []
    for number in (1, 3):
        options: dict[str, Any] = {"readers": number, "vid_stride": stride, "project": tmp_path / str(number)}
        with Pipeline(path, "body-n", imgsz=[64], save_matte="gray", **options) as pipeline:
            assert isinstance(pipeline.sources[0], Ahead) == (number > 1)
            report = pipeline.run()
        decode = next(stage for stage in report.stages if stage.name == "decode")
        found.append((report.frames, decode.items))
    assert found == [(-(-FRAMES // stride),) * 2] * 2


def test_steps_of_frames_that_are_left_out_count_with_the_next(tmp_path: Path) -> None:
    source, steps = opened(cuttable(tmp_path / "a.mp4"), vid_stride=3), list[tuple[float, ...]]()
    source.on_step = lambda *seconds: steps.append(seconds)
    for _ in range(7):
        source._step(1, 2, 3)
    assert steps == [(1, 2, 3), (3, 6, 9), (3, 6, 9)]
    source.close()


def test_frames_wait_in_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cuttable(tmp_path / "a.mp4")
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(machine, "MEMORY", meminfo)
    for places, expected in ((60, 4), (25, 2), (19, None)):
        meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {int(4 * places * surface(160, 120)) // 1024 + 1} kB\n")
        source = planned(path, readers=4).source
        assert (source.readers if isinstance(source, Segmented) else None) == expected


def test_mattes_are_those_of_one_decoder(tmp_path: Path) -> None:
    path, written = odd(tmp_path / "odd.mp4"), []
    for number in (1, 4):
        options: dict[str, Any] = {"save_matte": "green", "readers": number, "project": tmp_path / str(number)}
        with Pipeline(path, "body-n", imgsz=[64], **options) as pipeline:
            report = pipeline.run()
        written.append(Path(report.outputs[0]).read_bytes())
        why = "4 decoders read the file side by side: cut at key frames, it has parts of up to 43 frames"
        assert (f"{why}, and up to 43 of each wait" in report.choices) == (number == 4)
        decode = next(stage for stage in report.stages if stage.name == "decode")
        assert (decode.items, decode.copies) == (FRAMES, number)
        assert report.frames == FRAMES
    assert written[0] == written[1]


def test_where_one_decoder_reads(tmp_path: Path) -> None:
    rare = cuttable(tmp_path / "rare.mp4", options={"g": "1000", "x264-params": "scenecut=0"})
    brief = cuttable(tmp_path / "brief.mp4", frames=20)
    opens = cuttable(tmp_path / "open.mp4", options={"g": "10", "bf": "3", "x264-params": "open-gop=1:scenecut=0"})
    stream = cuttable(tmp_path / "a.ts")
    for path in (rare, brief, opens, stream, tmp_path / "missing.mp4"):
        assert spacing(path, SourceOptions()) is None
    for given in (rare, [brief, rare], "synthetic://bodies"):
        assert planned(given, readers=4).ahead == 0
    assert "could be cut" in str(planned(rare, readers=4).reasons["readers"])
    assert "readers" not in planned(rare).reasons
    path = cuttable(tmp_path / "a.mp4")
    assert planned(path).ahead == 0, "one keeps a CPU busy"
    assert planned(path, readers=4).source == planned([path], readers=4).source == Segmented(path, 4, 20)


@pytest.mark.parametrize(
    ("asked", "places", "expected"),
    [
        (4, 10_000, (4, 250)),  # all of each segment may wait
        (4, 1000, (4, 250)),
        (4, 999, (4, 249)),
        (4, 750, (4, 187)),  # what the first decodes has not to wait
        (4, 749, (3, 249)),
        (8, 1000, (5, 200)),
        (2, 10_000, (2, 250)),
        (4, 250, (2, 125)),
        (4, 249, None),
        (4, 0, None),
    ],
)
def test_as_many_decoders_as_memory_keeps_busy(asked: int, places: int, expected: tuple[int, int] | None) -> None:
    each = surface(3840, 1920, 24)
    assert each == 2 * surface(3840, 1920) == 2 * 1.5 * 4096 * 1920
    path = Path("a.mp4")
    found, why = readers.ahead(path, asked, Spacing(250, (3840, 1920), 24), each, each * (places + 0.5))
    assert found == (Segmented(path, *expected, bits=24) if expected else None)
    assert found is None or found.readers * found.ahead <= places
    assert ("side by side" if expected else "one decoder reads the file: cut at key frames") in why


def test_frames_that_wait_count_as_memory() -> None:
    card = read_card(find_model("body-n"))
    settings = settings_from({"device": "cuda", "save_matte": "gray"})
    rings = []
    for source in (Segmented(Path("a.mp4"), 4, 250), Segmented(Path("ten.mp4"), 4, 250, 24), None):
        run = RunPlan(card, settings, source, "cudnn", 1, 0, {}, card.preprocess)
        found = predict(run, 1, 2, (3840, 1920), decoders=readers.decoders(source))
        rings.append(sum(one.size for one in found.parts if one.name.startswith("rings")))
    # In batches, between threads, until they are written, and one more.
    held = 3 * TOGETHER + 3 + readers.until_written(settings) + 1
    eight_bits = 4 * (250 + held) * surface(3840, 1920)
    assert rings == [eight_bits, 2 * eight_bits, held * surface(3840, 1920)]
