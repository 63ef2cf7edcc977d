"""The report: its words, JSON that comes back as it was, a page that is safe to open."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from framefuse.errors import SinkError, UsageError
from framefuse.report import bar
from framefuse.report.facts import CopyFacts, ErrorFacts, ModelFacts, ViewFacts
from framefuse.report.report import Report, build_report
from framefuse.runtime.power import EnergyFacts
from framefuse.runtime.profiling import Recorder
from framefuse.sources import SourceInfo
from framefuse.tracking.tally import EventFacts, TrackFacts
from measured import EVIL, measurements


def full_report(folder: Path) -> Report:
    source = SourceInfo(
        f"videos/{EVIL}.mp4", "file", 1920, 1080, Fraction(30000, 1001), notes=[EVIL], drops={"corrupt": 2}
    )
    error = SinkError(f"cannot write {EVIL}", remedy=f"free some space {EVIL}")
    error.stage = "write"
    return build_report(
        measurements(),
        sources=[source],
        model=ModelFacts(EVIL, "yolov8", "640x384", "openvino", "bf16"),
        choices=[f"engine openvino: {EVIL}"],
        detections={"car": 345, EVIL: 2000, **{f"class {number}": 0 for number in range(80)}},
        outputs=[
            folder / "a b.mp4",
            folder / "javascript:alert(1)",
            folder / EVIL.replace("/", "").replace("\x00", ""),
        ],
        warnings=[EVIL],
        error=ErrorFacts.of(error),
    )


def test_summary() -> None:
    report = build_report(measurements(), detections={"car": 2345})
    assert report.summary() == (
        "300 frames in 3.6 s, 83.3 fps, 15.0 ms p50 latency, 2,345 detections; limited by inference"
    ).replace("15.0", f"{report.latency_ms.p50:.1f}" if report.latency_ms else "")
    assert report.latency_ms and report.latency_ms.p50 == pytest.approx(15.0, rel=0.02)


def test_summary_of_a_failed_run_names_error_and_stage(tmp_path: Path) -> None:
    assert full_report(tmp_path).summary().endswith("; ended by SinkError in write")
    stopped = build_report(measurements(0), error=ErrorFacts.of(KeyboardInterrupt()))
    assert stopped.summary() == "0 frames in 3.6 s, 0.0 fps, 0 detections; interrupted"


@pytest.mark.parametrize(
    "skipped",
    [
        "damaged packets skipped: 55",
        "damaged frames, delivered as concealed by the decoder: 3",
        "the header states 12 frames, 11 could be decoded",
        "the header states 9.00 s, the video ends after 2.00 s",
    ],
)
def test_what_was_left_out_of_one_of_several_sources_is_said_once_and_with_its_name(skipped: str) -> None:
    parts = [
        SourceInfo(name, "file", path=Path(name), notes=notes)
        for name, notes in (("two/4.mp4", []), ("two/5.mp4", [skipped]))
    ]
    chain = SourceInfo("2 sources", "chain", notes=[f"two/5.mp4: {skipped}"])
    table = build_report(measurements(), sources=[chain, *parts]).table()
    assert [line for line in table.splitlines() if skipped in line and "warning" in line] == [
        f"warning  two/5.mp4: {skipped}"
    ]
    alone = build_report(measurements(), sources=parts[1:]).table()
    assert f"warning  {skipped}" in alone


def test_table_fits_and_says_what_matters(tmp_path: Path) -> None:
    report = full_report(tmp_path)
    table = report.table()
    stage_lines = [
        line for line in table.splitlines() if line.startswith(("decode", "inference", "quiet", "other", "total"))
    ]
    assert len(stage_lines) == 5 and max(map(len, stage_lines)) <= 100
    for text in (report.verdict, "free some space", "engine openvino", "a b.mp4", "2 corrupt"):
        assert text in table


def test_energy_of_each_device_or_why_there_is_none() -> None:
    gpu = EnergyFacts("cuda:0", "NVML", "±5 %", 3.6, 900.0, 250.0, 126.0, 3.0, 1.488, {"write": 2.5})
    cpu = EnergyFacts("cpu", "RAPL", "some %", 3.6, 300.0, 83.3, None, 1.0)
    report = build_report(replace(measurements(), energy=[gpu, cpu]))
    assert report.energy_lines() == [
        "cuda:0 3 J a frame, 1.49 J above the 126 W at rest, 250.0 W on average, by NVML (±5 %); J by stage: write 2.5",
        "cpu 1 J a frame, 83.3 W on average, by RAPL (some %)",
        "together 4 J a frame",
    ]
    assert Report.from_json(report.to_json()) == report and "together 4 J a frame" in report.to_html()
    none = [EnergyFacts(name, "", "", missing=EVIL) for name in ("cuda:0", "cpu")]
    report = build_report(replace(measurements(), energy=none))
    stand_in = "; stand-in: 0.023 CPU-seconds a frame"
    assert report.energy_lines() == [
        f"cuda:0 not measured, because {EVIL}",
        f"cpu not measured, because {EVIL}{stand_in}",
    ]
    assert stand_in in report.table() and "<script>" not in report.to_html()


def test_a_notebook_shows_the_page(tmp_path: Path) -> None:
    report = full_report(tmp_path)
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count('"') == 4
    assert unescape(shown.split('"')[1]) == report.to_html()


def test_a_long_report_is_short() -> None:
    infos = [SourceInfo(f"clips/{number}.mp4", "file") for number in range(1000)]
    outputs = [Path(f"run/{number}.jsonl") for number in range(1000)]
    report = build_report(measurements(), sources=infos, outputs=outputs, warnings=map(str, range(500)))
    assert len(report.table().splitlines()) < 80 and "and 989 more, see report.json" in report.table()
    page = report.to_html()
    assert len(page.partition("<h1>")[2].partition("</h1>")[0]) < 120
    assert len(page) < 60_000 and len(report.to_dict()["outputs"]) == 1000


def test_json_round_trip(tmp_path: Path) -> None:
    report = full_report(tmp_path)
    again = Report.from_json(report.to_json())
    assert again.to_dict() == json.loads(report.to_json()) | {
        "latency_bars": report.latency_bars,
        "fps_over_time": report.fps_over_time,
    }
    assert again == report
    assert again.other_cpu_ms == pytest.approx(6.9e3 / 300 - 21.6)


def test_json_of_another_schema_or_kind_is_refused() -> None:
    report = build_report(measurements())
    with pytest.raises(UsageError, match="schema 99"):
        Report.from_json(replace(report, schema=99).to_json())
    for text in ("{}", "[1]", "not json", b"\xff"):
        with pytest.raises(UsageError, match="not a framefuse report"):
            Report.from_json(text)


def test_live_source_without_drops_is_named() -> None:
    live = SourceInfo("rtsp://camera/1", "live", fps=Fraction(84), drops={"superseded": 3})
    assert build_report(measurements(), sources=[live]).limiter == "source"
    live.drops["superseded"] = 100
    assert build_report(measurements(), sources=[live]).limiter == "inference"


def test_save_writes_json_and_html(tmp_path: Path) -> None:
    report = build_report(measurements(), outputs=[tmp_path / "run" / "out.mp4"])
    paths = report.save(tmp_path / "run")
    assert [path.name for path in paths] == ["report.json", "report.html"]
    assert Report.from_json(paths[0].read_text("utf-8")) == report
    assert "href='out.mp4'" in paths[1].read_text("utf-8")


def test_save_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot write the report"):
        build_report(measurements()).save(tmp_path / "file")


class Page(HTMLParser):
    """Collects tags and checks that they are balanced."""

    VOID = frozenset({"meta"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_safe_and_complete_page(tmp_path: Path) -> None:
    html = full_report(tmp_path).to_html(tmp_path)
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags and "link" not in tags and "img" not in tags and tags.count("style") == 1
    assert not re.search(r"https?:|@import|url\(|src=|\x00", html)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links[:2] == ["a%20b.mp4", "javascript%3Aalert%281%29"]
    for text in (
        "Inference is the bottleneck",
        "alert('1')",
        "The run ended early in write",
        "free some space",
        "29.97 fps",
        "345",
    ):
        assert text in page.text
    assert "70 more classes" in page.text


def test_html_of_a_run_whose_samples_all_fell_between_frames(tmp_path: Path) -> None:
    report = replace(full_report(tmp_path), fps_over_time=[(0.5, 0.0), (1.0, 0.0), (1.5, 0.0)])
    assert "Frames per second over time" not in Page(report.to_html()).text


def test_what_was_copied_is_said_and_survives_json(tmp_path: Path) -> None:
    copies = [CopyFacts("preprocess", "h2d", "control", 544.0), CopyFacts("write", "d2h", "pixels", 3110400.0)]
    report = replace(full_report(tmp_path), copies=copies)
    assert "3,110,400 bytes of pixels, 544 of tables" in report.table()
    assert "3,110,400" in Page(report.to_html()).text
    assert Report.from_json(report.to_json()).copies == copies
    assert "copies" not in full_report(tmp_path).table()


def test_html_of_an_empty_run(tmp_path: Path) -> None:
    empty = Recorder().snapshot()
    page = Page(build_report(empty, error=ErrorFacts.of(UsageError("no such file"))).to_html())
    assert "No frame was processed" in page.text and "no such file" in page.text


def test_html_says_nothing_about_a_frame_where_there_was_none(tmp_path: Path) -> None:
    page = Page(build_report(measurements(frames=0), outputs=[tmp_path]).to_html(tmp_path))
    said = page.text
    assert "0 frames in 3.6 s" in said and "CPU per frame" not in said and "faults per frame" not in said
    assert "Where a frame's CPU time goes" not in said
    assert "this folder" in said  # where images were written


def test_html_is_styled() -> None:
    html = build_report(measurements()).to_html()
    style = html[html.index("<style>") : html.index("</style>")]
    for name in {name for _, attributes in Page(html).tags for name in (attributes.get("class") or "").split()}:
        assert f".{name}" in style, name


def test_progress_of_several_processes_is_their_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "LINE_SECONDS", 0.0)
    said: list[tuple[str, float]] = []
    with bar.Bar(
        [], bar=False, line=lambda text, **facts: said.append((text.partition(", ")[0], facts["frames"]))
    ) as it:
        it.reach(1)
        it.reach(5_000)
        it.advance()
    assert said == [("1 frame", 1), ("5,000 frames", 5_000), ("5,001 frames", 5_001)]


def test_views_with_the_pixels_of_the_frame_are_no_number_of_times() -> None:
    assert ViewFacts(2, 38.04, 1).line() == "2 a frame, 38 ms each"
    assert ViewFacts(1, 20, 0.5).line() == "1 a frame, 20 ms each, with 0.5 times its pixels"


def test_a_long_timeline_is_that_of_the_last_tracks(tmp_path: Path) -> None:
    rows = [TrackFacts("a.mp4", number, "car", 0.0, 1.0) for number in (2, 3)]
    for tracks, said in ((2, False), (3, True)):
        report = build_report(measurements(), events=EventFacts({"car": tracks}, timeline=rows))
        assert ("The last 2 tracks. " in report.to_html(tmp_path)) == said
