"""Jobs on a real Ray cluster of several nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from framefuse import Pipeline, open_source
from framefuse.cli.app import main
from framefuse.errors import CapabilityError, SourceError, UsageError
from framefuse.fleet import ray as fleet
from framefuse.fleet.ray import RayFleet

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
OPTIONS: dict[str, Any] = {"imgsz": 96, "save_jsonl": True, "save_parquet": True}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("clips")
    for seed, frames in enumerate((75, 20, 100)):
        Pipeline(
            f"synthetic://street?seed={seed}&frames={frames}&size=320x192&complexity=1",
            "squares",
            save=True,
            project=folder,
            name=f"made{seed}",
        ).run()
        (video,) = (folder / f"made{seed}").glob("*.mp4")
        video.rename(folder / f"clip{seed}.mp4")
    (folder / "more").mkdir()
    (folder / "more" / "clip1.mp4").write_bytes((folder / "clip1.mp4").read_bytes())
    return [*sorted(folder.glob("*.mp4")), folder / "more" / "clip1.mp4"]


@pytest.fixture(scope="module")
def expected(clips: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    folder = tmp_path_factory.mktemp("one")
    Pipeline(clips, "scout-n", project=folder, name="run", **OPTIONS).run()
    return outputs(folder / "run")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, configure_logging=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "RANGE_SECONDS", 1.0)


def outputs(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("clip*.jsonl")}


def tables(folder: Path) -> dict[str, Any]:
    from pyarrow.parquet import read_table

    return {file.name: read_table(file) for file in folder.glob("clip*.parquet")}


def job(clips: list[Path], cluster: Any, tmp_path: Path, **options: Any) -> RayFleet:
    return RayFleet(clips, "scout-n", address=cluster.address, project=tmp_path, name="run", **{**OPTIONS, **options})


def test_two_nodes_give_exactly_what_one_process_gives(
    clips: list[Path], cluster: Any, expected: dict[str, bytes], tmp_path: Path
) -> None:
    counts = list[int]()
    report = job(clips, cluster, tmp_path).run(counts.append)
    assert outputs(tmp_path / "run") == expected
    assert sorted(expected) == ["clip0.jsonl", "clip1.jsonl", "clip1_2.jsonl", "clip2.jsonl"]
    assert (report.files, report.frames, report.failed) == (4, 215, {})
    assert counts[-1] == 215
    assert len(counts) == 2 + 1 + 3 + 1  # units
    assert sum(report.machines.values()) == 215
    one = tmp_path / "one"
    Pipeline(clips, "scout-n", project=one, name="run", **OPTIONS).run()
    wanted = tables(one / "run")
    assert {name: table.equals(wanted[name]) for name, table in tables(tmp_path / "run").items()} == {
        name: True for name in wanted
    }
    assert not (tmp_path / "run" / "parts").exists()


def test_tracks_are_followed_through_a_whole_file(clips: list[Path], cluster: Any, tmp_path: Path) -> None:
    job(clips[:1], cluster, tmp_path, track="bytetrack").run()
    Pipeline(clips[:1], "scout-n", track="bytetrack", project=tmp_path, name="one", **OPTIONS).run()
    assert outputs(tmp_path / "run") == outputs(tmp_path / "one")


def run_beside(fleet: RayFleet, first: threading.Event) -> tuple[threading.Thread, list[Any]]:
    done = list[Any]()

    def run() -> None:
        try:
            done.append(fleet.run(lambda frames: first.set()))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, done


def test_a_node_that_is_killed_loses_and_doubles_nothing(
    clips: list[Path], cluster: Any, expected: dict[str, bytes], tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    first = threading.Event()
    thread, done = run_beside(job(clips, cluster, tmp_path), first)
    assert first.wait(120)
    cluster.remove_node(node, allow_graceful=False)
    thread.join(300)
    assert outputs(tmp_path / "run") == expected, done


def test_a_worker_that_is_killed_loses_and_doubles_nothing(
    clips: list[Path], cluster: Any, expected: dict[str, bytes], tmp_path: Path
) -> None:
    psutil = pytest.importorskip("psutil")
    first = threading.Event()
    thread, done = run_beside(job(clips, cluster, tmp_path), first)
    assert first.wait(120)
    actors = [one for one in psutil.process_iter(["cmdline"]) if "MapWorker" in " ".join(one.info["cmdline"] or [])]
    if actors:  # the job may be quicker
        os.kill(actors[0].pid, signal.SIGKILL)
    thread.join(300)
    assert outputs(tmp_path / "run") == expected, done


def test_a_file_that_cannot_be_read_is_said_and_done_later(
    clips: list[Path], cluster: Any, expected: dict[str, bytes], tmp_path: Path
) -> None:
    copies = [tmp_path / "in" / clip.name for clip in clips[:3]]
    copies[0].parent.mkdir()
    for copy, clip in zip(copies, clips, strict=False):
        copy.write_bytes(clip.read_bytes())
    copies[1].write_bytes(b"no video at all" * 100)
    report = job(copies, cluster, tmp_path).run()
    assert list(report.failed) == [str(copies[1])]
    assert report.unreadable == 1
    assert sorted(outputs(tmp_path / "run")) == ["clip0.jsonl", "clip2.jsonl"]
    before = {file: os.stat(file).st_mtime_ns for file in (tmp_path / "run").glob("clip*")}
    copies[1].write_bytes(clips[1].read_bytes())
    report = job(copies, cluster, tmp_path, resume=True).run()
    assert (report.files, report.frames, report.failed) == (3, 20, {})
    assert outputs(tmp_path / "run") == {name: expected[name] for name in ("clip0.jsonl", "clip1.jsonl", "clip2.jsonl")}
    assert {file: os.stat(file).st_mtime_ns for file in before} == before


def test_a_job_that_was_stopped_goes_on(
    clips: list[Path], cluster: Any, expected: dict[str, bytes], tmp_path: Path
) -> None:
    def stop(frames: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(clips, cluster, tmp_path).run(stop)
    done = len(list((tmp_path / "run" / "parts").glob("*/done.json")))
    assert done
    report = job(clips, cluster, tmp_path, resume=True).run()
    assert report.frames < 215
    assert outputs(tmp_path / "run") == expected


def test_a_worker_of_a_gpu_reads_several_files_at_once(
    clips: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    values = {**OPTIONS, "device": "cpu"}
    (tmp_path / "broken.mp4").write_bytes(b"nothing")
    units = [fleet.Unit(str(file), f"key{number}") for number, file in enumerate([*clips, tmp_path / "broken.mp4"])]
    units.append(fleet.Unit(str(clips[0]), "range", 0.0, 1.0))
    worker = fleet.Worker("scout-n", values, str(tmp_path))
    batch = worker({"unit": [json.dumps(vars(unit)) for unit in units]})
    said = [json.loads(one) for one in batch["said"]]
    assert [one["frames"] for one in said] == [75, 20, 100, 20, 0, 30]
    assert [bool(one["error"]) for one in said] == [False] * 4 + [True, False]
    for number, name in enumerate(["clip0", "clip1", "clip2", "clip1"]):
        (file,) = (tmp_path / f"key{number}").glob("*.jsonl")
        assert file.read_bytes() == expected[f"{name}.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("together*")) == []


def test_files_that_come_later_do_not_take_the_names_of_complete_outputs(
    clips: list[Path], cluster: Any, tmp_path: Path
) -> None:
    job(clips[1:2], cluster, tmp_path, resume=True).run()
    before = outputs(tmp_path / "run")
    job([clips[3], clips[1]], cluster, tmp_path, resume=True).run()
    after = outputs(tmp_path / "run")
    assert sorted(after) == ["clip1.jsonl", "clip1_2.jsonl"] and after.items() > before.items()


def test_images_odd_names_and_a_stride(clips: list[Path], cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (64, 64)).save(folder / f"{number}.png")
    (tmp_path / "a clip [1080p].mp4").write_bytes(clips[1].read_bytes())
    (folder / "gone.png").symlink_to(tmp_path / "nowhere")
    files = [folder / "*.png", tmp_path / "a clip [1080p].mp4"]
    job(files, cluster, tmp_path, vid_stride=3).run()
    Pipeline(files, "scout-n", vid_stride=3, project=tmp_path, name="one", **OPTIONS).run()
    for name in ("images.jsonl", "a_clip_1080p.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_file_that_is_gone_is_said_and_the_others_are_done(clips: list[Path], cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    gone = tmp_path / "in" / "gone.mp4"
    gone.symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "clip.mp4").write_bytes(clips[1].read_bytes())
    report = job([tmp_path / "in"], cluster, tmp_path).run()
    assert (report.files, list(report.failed)) == (1, [str(gone)])


def test_a_shard_of_a_job(clips: list[Path], cluster: Any, tmp_path: Path) -> None:
    assert job(clips, cluster, tmp_path, shard="2/4").run().frames == 20
    assert sorted(outputs(tmp_path / "run-2of4")) == ["clip1.jsonl"]


def test_what_the_model_cannot_do_ends_the_job(clips: list[Path], cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="class 'nosuch' was asked for"):
        job(clips[1:2], cluster, tmp_path, classes=["nosuch"]).run()
    with pytest.raises(UsageError, match="is not a file"):
        job(["synthetic://street?frames=9"], cluster, tmp_path)


def test_nothing_can_be_read(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"nothing")
    with pytest.raises(SourceError, match="no file could be read"):
        job([tmp_path / "broken.mp4"], cluster, tmp_path).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"save": True}, "save cannot be merged"), ({"save_jsonl": False, "save_parquet": False}, "needs outputs")],
)
def test_outputs_that_cannot_be_merged(
    clips: list[Path], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        RayFleet(clips, "scout-n", project=tmp_path, **{**OPTIONS, **options})


def test_a_camera_and_a_mixed_folder(tmp_path: Path, clips: list[Path]) -> None:
    with pytest.raises(UsageError, match="never ends"):
        RayFleet("rtsp://camera/1", "scout-n", **OPTIONS)
    for number, frame in enumerate(open_source("synthetic://street?frames=2&size=64x64")):
        Image.fromarray(frame.to_rgb()).save(tmp_path / f"{number}.png")
    (tmp_path / "clip.mp4").write_bytes(clips[0].read_bytes())
    with pytest.raises(UsageError, match="images and videos"):
        RayFleet(tmp_path, "scout-n", **OPTIONS)


def test_ray_is_not_installed(clips: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CapabilityError, match="Ray is not installed") as caught:
        RayFleet(clips, "scout-n", project=tmp_path, **OPTIONS)
    assert list(tmp_path.iterdir()) == []
    assert "framefuse[ray]" in str(caught.value.remedy)


def test_a_cluster_of_its_own_beside_one_that_runs(cluster: Any) -> None:
    lines = "from framefuse.fleet.ray import LOCAL, connected", "with connected(LOCAL) as ray:"
    code = "\n".join([*lines, "    print(ray.get_runtime_context().gcs_address)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ":" in done.stdout
    assert done.stdout.split()[-1] != cluster.address


def test_the_command_line_starts_a_cluster_of_its_own(
    clips: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    words = ["predict", "-s", str(clips[0]), "-s", str(clips[1]), "-m", "scout-n", "--imgsz", "96", "--ray"]
    words += ["--project", str(tmp_path), "--name", "run"]
    done = subprocess.run([sys.executable, "-m", "framefuse", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "95 frames of 2 files" in done.stderr
    assert "INFO" not in done.stderr
    assert outputs(tmp_path / "run") == {name: expected[name] for name in ("clip0.jsonl", "clip1.jsonl")}
    assert json.loads((tmp_path / "run" / "ray.json").read_text())["frames"] == 95


def test_a_cluster_that_is_not_there(clips: list[Path], tmp_path: Path) -> None:
    words = ["predict", str(clips[0]), "scout-n", "--ray", "127.0.0.1:1", "--project", str(tmp_path)]
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "framefuse", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "127.0.0.1:1 cannot be used" in done.stderr
    assert time.monotonic() - started < 120


def test_conflicting_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "clip.mp4", "scout-n", "--ray", "--stdout"]) == 2
    assert main(["predict", "clip.mp4", "scout-n", "--ray", "--gpus", "0"]) == 2
    assert "--ray uses all GPUs" in capsys.readouterr().err
