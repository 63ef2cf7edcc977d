"""Thermal zones of Linux: which limit counts, and files that say nothing."""

from __future__ import annotations

from pathlib import Path

from framefuse.runtime.temperature import thermometer


def zone(root: Path, number: int, temp: str, **trips: int) -> Path:
    folder = root / f"sys/class/thermal/thermal_zone{number}"
    folder.mkdir(parents=True)
    (folder / "temp").write_text(f"{temp}\n")
    for index, (kind, limit) in enumerate(trips.items()):
        (folder / f"trip_point_{index}_type").write_text(f"{kind}\n")
        (folder / f"trip_point_{index}_temp").write_text(f"{limit}\n")
    return folder


def test_a_zone_is_hot_at_its_lowest_limit_that_slows_it_down(tmp_path: Path) -> None:
    cpu = zone(tmp_path, 0, "70000", active=50000, critical=105000, hot=99000, passive=95000)
    zone(tmp_path, 1, "60000")  # without limits
    hot = thermometer(root=tmp_path)
    assert not hot()
    (cpu / "temp").write_text("95000\n")
    assert hot()
    (cpu / "temp").write_text("94000\n")
    assert not hot()


def test_zones_that_say_nothing(tmp_path: Path) -> None:
    zone(tmp_path, 0, "not a number", passive=95000)
    zone(tmp_path, 1, "99000", passive=-274000)
    gone = zone(tmp_path, 2, "40000", passive=95000)
    hot = thermometer(root=tmp_path)
    (gone / "temp").unlink()
    assert not hot()
    assert not thermometer(root=tmp_path / "nothing")()
