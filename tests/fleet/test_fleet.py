"""A fleet: several processes over one list of inputs. Here they are on the CPU; the processes and files are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from framefuse import Fleet, Pipeline
from framefuse.cli.app import main
from framefuse.config import settings_from
from framefuse.errors import CapabilityError, SinkError, SourceError, UsageError
from framefuse.fleet import fleet as fleet_module
from framefuse.fleet.fleet import about, parse_devices, several_pay
from framefuse.fleet.ranges import Piece, merge
from framefuse.runtime import choices
from framefuse.sources import SharedList, SourceOptions
from media import damage_packet, video


def clips(folder: Path, count: int, frames: int = 12) -> list[Path]:
    return [video(folder / f"clip{number}.mp4", frames=frames) for number in range(count)]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return video(tmp_path_factory.mktemp("long") / "long.mp4", frames=3000)


def test_workers_share_the_list_and_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first input of each waits until both are there: on a busy machine, one could read all before that."""
    both, there = threading.Barrier(2, timeout=60), set[int]()

    class Waiting(deque[str]):
        def popleft(self) -> str:
            if threading.get_ident() not in there:
                there.add(threading.get_ident())
                both.wait()
            return super().popleft()

    monkeypatch.setattr(fleet_module, "deque", Waiting)
    files = clips(tmp_path, 5)
    fleet = Fleet(files, "squares", devices=["cpu", "cpu"], project=tmp_path / "runs", save_jsonl=True, engine="null")
    report = fleet.run()
    assert report.frames == 5 * 12
    assert sorted(name for worker in report.workers for name in worker.inputs) == sorted(map(str, files))
    assert all(worker.inputs for worker in report.workers)
    assert fleet.folder is not None
    written = sorted(fleet.folder.glob("*.jsonl"))
    assert [path.name for path in written] == [*(f"clip{number}.jsonl" for number in range(5)), "manifest.jsonl"]
    assert all(len(path.read_text().splitlines()) == 12 for path in written[:-1])
    assert not list(fleet.folder.glob("*_cpu/*.jsonl")) and (fleet.folder / "0_cpu" / "report.json").exists()
    saved = json.loads((fleet.folder / "fleet.json").read_text())
    assert saved["frames"] == 60 and not report.errors
    assert "60 frames of 5 inputs" in report.table()


def test_outputs_are_those_of_one_process(tmp_path: Path) -> None:
    """Also where an output is a folder."""
    files = clips(tmp_path, 3, frames=6)
    options: dict[str, Any] = {"save_jsonl": True, "save_txt": True, "save_frames": True, "save": True, "conf": 0.0}
    fleet = Fleet(files, "squares", devices=["cpu", "cpu"], project=tmp_path, name="fleet", **options)
    fleet.run()
    Pipeline(list(map(str, files)), "squares", device="cpu", project=tmp_path, name="single", **options).run()

    def content(name: str) -> dict[str, Any]:
        root, own = tmp_path / name, ("report.", "fleet.", "manifest.")
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return {key: [] if path.suffix == ".jsonl" else path.read_bytes() for key, path in found.items()
                if not path.name.startswith(own)}  # fmt: skip

    assert content("fleet") == content("single")
    inputs = [json.loads(line)["input"] for line in (tmp_path / "fleet" / "manifest.jsonl").read_text().splitlines()]
    assert inputs == list(map(str, files))
    again = Pipeline(
        list(map(str, files)), "squares", device="cpu", project=tmp_path, name="fleet", resume=True, **options
    )
    assert again.run().frames == 0


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_a_single_video_is_read_in_ranges(tmp_path: Path, share: float) -> None:
    """Also where it ends before its header says, so that the last range is empty."""
    clip = video(tmp_path / "clip.mkv", frames=90)
    clip.write_bytes(clip.read_bytes()[: int(clip.stat().st_size * share)])
    options: dict[str, Any] = {"save_jsonl": True, "save_parquet": True, "conf": 0.0}
    fleet = Fleet(clip, "squares", devices=["cpu"] * 3, project=tmp_path, name="fleet", **options)
    report = fleet.run()
    Pipeline(str(clip), "squares", device="cpu", project=tmp_path, name="single", **options).run()
    assert (tmp_path / "fleet" / "clip.jsonl").read_text() == (tmp_path / "single" / "clip.jsonl").read_text()
    merged, expected = (parquet.read_table(tmp_path / name / "clip.parquet") for name in ("fleet", "single"))
    assert merged.equals(expected)
    assert len(report.workers) == 3 and "of 1 input " in report.table()
    assert not list((tmp_path / "fleet").glob("*_cpu/*.jsonl"))


@pytest.mark.slow
def test_the_ranges_of_a_failed_run_stay(long: Path, tmp_path: Path) -> None:
    fleet = Fleet(long, "squares", devices=["cpu", "cpu"], project=tmp_path, save_jsonl=True)

    def kill(frames: int) -> None:
        if fleet._workers[0].facts.frames:
            fleet._workers[0]._process.kill()

    report = fleet.run(kill)
    assert report.errors and fleet.folder is not None and not list(fleet.folder.glob("*.jsonl"))
    assert len((fleet.folder / "1_cpu" / "long.jsonl").read_text().splitlines()) > 1000


@pytest.mark.parametrize("options", [{"track": "bytetrack"}, {"save": True}, {"vid_stride": 2}, {"start": 1.0}])
def test_what_needs_the_whole_video_is_not_cut(long: Path, options: dict[str, Any]) -> None:
    given = {"save_jsonl": True, **options}
    assert Fleet(long, "squares", devices=["cpu", "cpu"], save_jsonl=True)._shares_segments
    whole = Fleet(long, "squares", devices=["cpu", "cpu"], **given)
    assert not whole._ranges and not whole._shares_segments


def test_files_of_one_name_lose_nothing(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    files = [video(tmp_path / name / "clip.mp4", frames=6) for name in ("one", "two", "three")]
    fleet = Fleet(files, "squares", devices=["cpu", "cpu"], engine="null", project=tmp_path, save_jsonl=True)
    fleet.run()
    assert fleet.folder is not None
    entries = [json.loads(line) for line in (fleet.folder / "manifest.jsonl").read_text().splitlines()]
    assert [entry["input"] for entry in entries] == list(map(str, files))
    outputs = {name for entry in entries for name in entry["outputs"]}
    assert len(outputs) == 3 and "clip.jsonl" in outputs
    assert all(len((fleet.folder / name).read_text().splitlines()) == 6 for name in outputs)
    assert several_pay(list(map(str, files)) * 3, settings_from({"save_jsonl": True})) is None


@pytest.mark.parametrize(
    ("options", "frames", "several"),
    [
        ({}, 9000, True),
        ({}, 12, False),
        ({"readers": 4}, 9000, False),
        ({"device": "cpu"}, 9000, False),
        ({"device": "cuda:0"}, 9000, False),
        ({"save_jsonl": False}, 9000, False),
        ({"resume": True}, 9000, False),
    ],
)
def test_many_long_videos_get_several_processes_on_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], frames: int, several: bool
) -> None:
    files = clips(tmp_path, 6, frames=2)
    monkeypatch.setattr(choices, "check_cuda", lambda: None)
    monkeypatch.setattr(fleet_module, "parse_devices", lambda text: ["cuda:0", "cuda:1"])
    monkeypatch.setattr(fleet_module, "about", lambda inputs: frames * len(inputs))
    found = several_pay([str(file) for file in files], settings_from({"save_jsonl": True, **options}))
    assert several_pay(str(tmp_path / "*.mp4"), settings_from({"save_jsonl": True, **options})) == found
    if several:
        assert found is not None and found[0] == ["cuda:0", "cuda:1"] * 3
        assert "3 processes on each of 2 GPUs: 6 videos with about 54,000 frames" in found[1]
    else:
        assert found is None


def test_one_long_video_gets_several_processes(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "check_cuda", lambda: None)
    monkeypatch.setattr(fleet_module, "parse_devices", lambda text: ["cuda:0"])
    assert several_pay(str(long), settings_from({"save_jsonl": True})) is None
    monkeypatch.setattr(fleet_module, "WORTH", 3000)
    devices, why = several_pay(str(long), settings_from({"save_jsonl": True})) or ([], "")
    assert devices == ["cuda:0"] * 3
    assert "3 processes on each of 1 GPU: they share the video, which has about 3,000 frames" in why
    assert several_pay(str(long), settings_from({"save_jsonl": True, "save": True})) is None


def test_a_few_headers_tell_about_how_many_frames_there_are(tmp_path: Path) -> None:
    files = [str(file) for file in clips(tmp_path, 20, frames=7)]
    assert about(files) == 140
    assert about([*files[:3], str(tmp_path / "missing.mp4")]) == 28


def test_without_a_gpu_there_is_one_process(tmp_path: Path) -> None:
    assert (
        several_pay([str(file) for file in clips(tmp_path, 7, frames=2)], settings_from({"save_jsonl": True})) is None
    )


def test_a_manifest_of_images_and_odd_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    clips(tmp_path / "in", 1)[0].rename(tmp_path / "in" / "line\u2028end.mp4")
    clips(tmp_path / "in", 1)[0].rename(os.fsdecode(os.fsencode(tmp_path / "in") + b"/raw\xff.mp4"))
    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(tmp_path / "images" / f"{number}.png")
    given = {"devices": ["cpu", "cpu"], "project": tmp_path, "name": "run", "save_jsonl": True}
    fleet = Fleet([tmp_path / "images", tmp_path / "in"], "squares", **given)
    fleet.run()
    entries = [json.loads(line) for line in (tmp_path / "run" / "manifest.jsonl").read_bytes().splitlines()]
    assert len(entries) == 3
    names = [name for entry in entries for name in entry["outputs"]]
    assert sorted(names) == ["images.jsonl", "line_end.jsonl", "raw.jsonl"]


def test_the_result_does_not_replace_an_input(tmp_path: Path) -> None:
    model = tmp_path / "run" / "fleet.json"
    model.parent.mkdir()
    model.write_text("a model of the user")
    options = {"project": tmp_path, "name": "run", "exist_ok": True, "save_jsonl": True}
    with pytest.raises(SinkError, match=r"fleet\.json is an input of this run"):
        Fleet(clips(tmp_path, 1), model, devices=["cpu"], **options).run()
    assert model.read_text() == "a model of the user"


def test_an_input_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    good = clips(tmp_path, 1)[0]
    report = Fleet([tmp_path / "broken.mp4", good], "squares", devices=["cpu"], engine="null").run()
    assert report.frames == 12
    assert "broken.mp4 skipped" in report.table()


def test_what_is_damaged_is_said_with_its_name(tmp_path: Path) -> None:
    files = clips(tmp_path, 2, frames=40)
    damage_packet(files[1], 20)
    table = Fleet(files, "squares", devices=["cpu"], engine="null").run().table()
    assert [line for line in table.splitlines() if "skipped" in line and str(files[1]) not in line] == []
    assert table.count("damaged packets skipped") == 1


def test_a_bad_input_is_no_error_whichever_worker_gets_it(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    good = clips(tmp_path, 1)[0]
    for inputs in ([good, tmp_path / "broken.mp4"], [tmp_path / "broken.mp4", good]):
        report = Fleet(inputs, "squares", devices=["cpu", "cpu"], engine="null").run()
        assert report.frames == 12 and not report.errors
        assert "broken.mp4" in report.table()


@pytest.mark.slow
def test_inputs_of_a_worker_that_cannot_start_are_done_by_others(tmp_path: Path) -> None:
    files = clips(tmp_path, 6, frames=60)
    report = Fleet(files, "squares", devices=["cuda:7", "cpu"]).run()
    failed, other = report.workers
    assert failed.error is not None and failed.error.kind == "CapabilityError" and not failed.inputs
    assert report.frames == 6 * 60 and len(other.inputs) == 6


def test_a_terminated_worker_completes_what_it_wrote(long: Path, tmp_path: Path) -> None:
    fleet = Fleet(long, "squares", devices=["cpu"], project=tmp_path, save_jsonl=True)
    sent: list[int] = []

    def terminate(frames: int) -> None:
        if frames and not sent:
            sent.append(fleet._workers[0]._process.pid)
            os.kill(sent[0], signal.SIGTERM)

    report = fleet.run(terminate)
    (worker,) = report.workers
    assert worker.error is not None and worker.error.kind == "KeyboardInterrupt" and worker.report is not None
    assert fleet.folder is not None
    assert len((fleet.folder / "0_cpu" / "long.jsonl").read_text().splitlines()) >= report.frames > 0


def test_what_is_printed_in_a_worker_is_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('good morning')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    report = Fleet(clips(tmp_path, 1), "squares", devices=["cpu"], engine="null").run()
    assert report.frames == 12 and not report.errors


def test_no_frame_from_anywhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(SourceError, match=r"no input produced a frame \(1 tried\): .*broken\.mp4"):
        Fleet(tmp_path / "broken.mp4", "squares", devices=["cpu", "cpu"], engine="null").run()


@pytest.mark.slow
def test_what_a_killed_worker_had_not_taken_is_done_by_the_others(tmp_path: Path) -> None:
    files = clips(tmp_path, 4, frames=200)
    fleet = Fleet(files, "squares", devices=["cpu", "cpu"], project=tmp_path / "runs", save_jsonl=True)
    killed: list[int] = []

    def kill(frames: int) -> None:
        first = fleet._workers[0]
        if frames and first.facts.frames and not killed:
            killed.append(first._process.pid)
            os.kill(first._process.pid, signal.SIGKILL)

    report = fleet.run(kill)
    dead, alive = report.workers
    assert killed and dead.error is not None and "exit code -9" in dead.error.message
    assert dead.inputs[-1] in dead.error.message
    assert alive.error is None and alive.report is not None
    assert alive.report.frames == 200 * len(alive.inputs)
    assert len(dead.inputs) + len(alive.inputs) == len(files)


def test_an_interruption_completes_what_is_written(long: Path, tmp_path: Path) -> None:
    fleet = Fleet(long, "squares", devices=["cpu"], project=tmp_path / "runs", save_jsonl=True)

    def interrupt(frames: int) -> None:
        if frames:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.run(interrupt)
    assert fleet.folder is not None
    lines = (fleet.folder / "0_cpu" / "long.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 3000 and json.loads(lines[-1])
    report = json.loads((fleet.folder / "0_cpu" / "report.json").read_text())
    assert report["error"]["kind"] == "KeyboardInterrupt"
    assert 0 <= len(lines) - report["frames"] <= fleet.settings.queue + 1  # written, but not counted by the loop yet
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fleet")]


def test_it_runs_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    clip = clips(tmp_path, 1)[0]
    script = tmp_path / "script.py"
    script.write_text(
        f"import framefuse\nfleet = framefuse.Fleet({str(clip)!r}, 'squares', devices=['cpu'], engine='null')\n"
        "print(fleet.run().frames)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "12\n", done.stderr


def test_modules_in_the_current_folder_are_not_those_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("av", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('that is another module')")
    monkeypatch.chdir(tmp_path)
    report = Fleet(clips(tmp_path, 1), "squares", devices=["cpu"], engine="null").run()
    assert report.frames == 12 and not report.errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": []}, "needs devices"),
        ({"devices": None}, "needs devices"),
        ({"devices": "cuda:0"}, "needs devices, not 'cuda:0'"),
        ({"devices": ["gpu"]}, "'gpu' is not a device"),
        ({"devices": [0]}, "0 is not a device"),
        ({"devices": ["cpu"], "readers": -1}, "readers is -1"),
        ({"devices": ["cpu"], "model": None}, "no model is given"),
        ({"devices": ["cpu"], "show": True}, "cannot show windows"),
        ({"devices": ["cpu"], "cnf": 0.3}, "unknown setting 'cnf'"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fleet(clips(tmp_path, 1), **{"model": "squares", **options})


def test_live_sources_are_refused() -> None:
    for source in ("0", "rtsp://user:secret@host/live"):
        with pytest.raises(UsageError, match="never ends") as caught:
            Fleet([source], "squares", devices=["cpu"])
        assert "secret" not in str(caught.value)
    with pytest.raises(SourceError, match="no such file"):
        Fleet(["missing.mp4"], "squares", devices=["cpu"])
    with pytest.raises(UsageError, match="needs inputs"):
        Fleet([], "squares", devices=["cpu"])
    for nothing in (None, [None], b"clip.mp4"):
        with pytest.raises(UsageError, match="is not an input for a fleet"):
            Fleet(nothing, "squares", devices=["cpu"])  # type: ignore[arg-type]


def test_gpus_are_those_that_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = clips(tmp_path, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    fleet = Fleet(files, "squares", devices=["cuda:1", "cuda:0"])
    assert [fleet._environments[name]["CUDA_VISIBLE_DEVICES"] for name in ("cuda:0", "cuda:1")] == ["3", "GPU-5f"]
    with pytest.raises(UsageError, match="cuda:2 was asked for, but CUDA_VISIBLE_DEVICES=3,GPU-5f exposes 2 GPUs"):
        Fleet(files, "squares", devices=["cuda:2"])
    assert parse_devices("0, 2") == ["cuda:0", "cuda:2"]
    with pytest.raises(UsageError, match="--gpus is 'one'"):
        parse_devices("one")


def test_a_worker_without_its_gpu_says_so(tmp_path: Path) -> None:
    """There is no GPU where this runs, or the worker's environment hides it."""
    fleet = Fleet(clips(tmp_path, 1), "squares", devices=["cuda:7"])
    with pytest.raises(CapabilityError, match="cuda:7: ") as caught:
        fleet.run()
    assert caught.value.remedy


def test_the_command_line_needs_a_gpu_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise CapabilityError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(choices, "check_cuda", missing)
    monkeypatch.chdir(tmp_path)
    clip = str(clips(tmp_path, 1)[0])
    assert main(["predict", clip, "squares", "--gpus", "0,1"]) == 3
    assert "--gpus 0,1: there is no NVIDIA driver" in capsys.readouterr().err
    assert main(["predict", clip, "squares", "--gpus", "0,1", "--device", "cpu"]) == 2
    assert "--gpus and --device cpu conflict" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_processes_of_one_gpu_share_its_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    files = [tmp_path / f"{number}.mp4" for number in range(60)]
    for file in files:
        file.touch()

    def readers(devices: list[str], count: int = 60, **options: Any) -> list[int]:
        fleet = Fleet(files[:count], "squares", devices=devices, **options)
        return [fleet._job(number)["readers"] for number in range(len(devices))]

    assert readers(["cuda:0"]) == [8]
    assert readers(["cuda:0", "cuda:0", "cuda:0", "cuda:1", "cpu"]) == [6, 6, 6, 8, 1]
    assert readers(["cuda:0", "cuda:0", "cuda:0"], count=7) == [3, 3, 3]
    assert readers(["cuda:0", "cuda:0", "cuda:0"], readers=9) == [9, 9, 9]
    assert readers(["cpu", "cpu"], readers=2) == [2, 2]


def test_readers_take_the_next_item_when_they_are_free(tmp_path: Path) -> None:
    files = [video(tmp_path / f"{number}.mp4", frames=frames) for number, frames in enumerate((30, 2, 2, 2))]
    long, short = SharedList(iter(files), readers=2).open(SourceOptions())
    assert len(list(short)) == 6  # 1, 2 and 3, while 0 waits
    assert len(list(long)) == 30
    alone, *others = SharedList(iter(files[:1]), readers=8).open(SourceOptions())
    assert [len(list(reader)) for reader in (alone, *others)] == [30, *[0] * 7]
    assert {reader.info.kind for reader in others} == {"unread"} and alone.info.kind == "file"
    taken = iter(files)
    readers = SharedList(taken, readers=3).open(SourceOptions())
    assert list(taken) == files[1:]  # only the first has opened its own, the others do so in their threads
    for reader in readers:
        reader.close()
    with pytest.raises(SourceError, match="it is empty"):
        SharedList(iter(()), readers=2).open(SourceOptions())


def test_numbers_of_frames_are_shifted_and_nothing_else(tmp_path: Path) -> None:
    lines = [
        '{"schema": 2, "source": "\\"frame\\": 7.png", "frame": 9, "detections": [{"class": "frame", "xyxy": [1.5]}]}',
        '{"schema": 2, "frame": 99, "detections": []}',
    ]
    parts = [tmp_path / name for name in ("0", "1")]
    for part in parts:
        part.mkdir()
        (part / "clip.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (out,) = merge(tmp_path, "clip", [Piece([part / "clip.jsonl"], 0, 2) for part in parts])
    shifted = [lines[0].replace('"frame": 9,', '"frame": 11,'), lines[1].replace("99", "101")]
    assert out.read_text().splitlines() == [*lines, *shifted]
    with pytest.raises(SinkError, match="has fewer than 3 lines"):
        merge(tmp_path, "clip", [Piece([parts[0] / "clip.jsonl"], 0, 3)])


def test_one_video_is_read_as_a_pipeline_reads_it(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it is cut, and several decoders read it: a list of one would have one reader."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Fleet(long, "squares", devices=["cuda:0"])._job(0)["source"] == "whole"
    shared = Fleet(long, "squares", devices=["cuda:0", "cuda:1"])._job(0)
    assert (shared["source"], shared["readers"]) == ("segments", 8)
    assert Fleet([long, long], "squares", devices=["cuda:0"])._job(0)["source"] == "list"
