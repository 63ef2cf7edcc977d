"""Every measured number of the docs stands in a record, and every page says which of its records are stale."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import protocol, source_groups
from benchmarks.results import pages
from benchmarks.results.__main__ import TABLES, rendered

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("allowed_numbers.txt")
NUMBER = r"\d(?:[\d,.]*\d)?"
MEASURED = re.compile(
    rf"(?<![\w.]){NUMBER}(?:\s?(?:to|-)\s?{NUMBER})?\s?(?:fps|s|ms|us|µs|(?:micro|milli)?seconds|images/s|frames/s|"
    r"frames a second|[GM]B/s|mAP\w*|points|times|x(?!\s?\d)|%)(?!\w)"
)
"""What looks measured: a number with a unit of speed, accuracy or a ratio."""
NOTEBOOK = ROOT / "docs" / "internals" / "lab-notebook.md"
"""Entries of the past, which name their machine and are not kept up to date: no record holds their numbers."""
HAND_WRITTEN = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {NOTEBOOK})]


def record(**fields: Any) -> dict[str, Any]:
    header = {
        "record": "made",
        "commit": "abcdef1234567",
        "dirty": False,
        "sources": {},
        "date": "2026-01-02T03:04:05Z",
        "machine": {"cpu": "CPU", "cores": 2, "gpu": []},
    }
    return header | fields


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records."""
    monkeypatch.setattr(protocol, "RECORDS", tmp_path)
    pages.load.cache_clear()
    yield tmp_path
    pages.load.cache_clear()


def test_every_page_is_what_the_records_say() -> None:
    differing = [
        page.relative_to(ROOT) for page, text in rendered().items() if page.read_text(encoding="utf-8") != text
    ]
    assert not differing, "run `make results` and commit what it writes"


def test_every_page_of_results_is_of_records() -> None:
    for page in (ROOT / "docs" / "results").glob("*.md"):
        assert "<!-- results: " in page.read_text(encoding="utf-8"), page


def test_every_table_stands_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in HAND_WRITTEN)
    assert [name for name in TABLES if f"<!-- results: {name} -->" not in text] == []


def allowed() -> list[tuple[str, str]]:
    """Page and words that hold a number which nothing here has measured, such as a limit or a default."""
    lines = [line for line in ALLOWED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    entries = [tuple(part.strip() for part in line.split("|")) for line in lines]
    assert all(len(entry) == 3 and all(entry) for entry in entries), "each line is: page | words | reason"
    return [(page, words) for page, words, _ in entries]


def prose(page: Path) -> str:
    """A page in one line, without what is generated, code, addresses and the widths of images."""
    text = pages.MARKER.sub(" ", page.read_text(encoding="utf-8"))
    text = re.sub(r"^```.*?^```", " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4}.*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    return re.sub(r"\s+", " ", text)


def test_no_measured_number_stands_in_prose() -> None:
    entries, used, found = allowed(), set(), []
    for page in HAND_WRITTEN:
        name, text = str(page.relative_to(ROOT)), prose(page)
        for entry in entries:
            if entry[0] == name and entry[1] in text:
                used.add(entry)
                text = text.replace(entry[1], " ")
        found += [f"{name}: ... {text[max(0, m.start() - 50) : m.end() + 15]} ..." for m in MEASURED.finditer(text)]
    assert not found, (
        "numbers that no record holds: use a table or <!-- value: RECORD.KEY --><!-- end -->, or say why "
        f"not in {ALLOWED.name}:\n" + "\n".join(found)
    )
    assert set(entries) == used, f"lines of {ALLOWED.name} that no page needs any more"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("110.9 fps, 0.31 ms and 9,467 frames/s", 3),
        ("3.3x, 1.5 times faster, 17 %", 3),
        ("-0.04 points, 74.0 mAP", 2),
        ("640x384, 32 x 32 pixels, 1920x1080, 64 frames", 0),
        ("takes 10 to 20 us", 1),
    ],
)
def test_what_looks_measured(text: str, count: int) -> None:
    assert len(MEASURED.findall(text)) == count


def test_every_group_names_files_that_exist() -> None:
    for group, patterns in source_groups.GROUPS.items():
        for pattern in patterns:
            home = source_groups.BENCHMARKS if pattern.startswith("benchmarks/") else source_groups.package()
            optional = pattern.startswith("!") or pattern.endswith(".cu")
            assert optional or list(home.glob(pattern.removeprefix("benchmarks/"))), f"{group}: {pattern}"


def test_comments_and_docstrings_do_not_make_a_record_stale() -> None:
    one = 'def f(x):\n    """Says é."""\n    return "# no comment" + x  # é\n\n\n# end\n'
    other = 'def f(x):\n    # why\n    return "# no comment" + x\n'
    assert source_groups.code(one) == source_groups.code(other) == 'def f(x):\n    return "# no comment" + x'
    assert source_groups.code("x = 1\n") != source_groups.code("x = 2\n")


def test_a_record_says_where_it_comes_from(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMIT", "0123456789ab-dirty")
    monkeypatch.setattr(sys, "argv", ["bench.py", "/home/me/clip.mp4", "--runs", "3 4"])
    protocol.save(
        "mine",
        {"fps": 1 / 3, "notes": ["/tmp/a/b.onnx is gone, runs/c.mp4 is not", "synthetic://street?seed=1"]},
        "sink",
    )
    found = protocol.read("mine")
    assert (found["record"], found["commit"], found["dirty"]) == ("mine", "0123456789ab", True)
    assert found["sources"] == source_groups.stamp("sink") and found["fps"] == 0.333333
    assert found["command"].startswith("python ") and found["command"].endswith(" clip.mp4 --runs '3 4'")
    assert found["notes"] == ["b.onnx is gone, runs/c.mp4 is not", "synthetic://street?seed=1"]
    assert (
        found["machine"].keys() >= {"cpu", "cores", "ram_gb", "gpu", "driver", "packages"} and found["date"][-1] == "Z"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sources": {"sink": "now"}}, "commit `abcdef1`."),
        ({"sources": {"sink": "0" * 12}}, "commit `abcdef1`; the sink sources have changed since."),
        (
            {"sources": {"sink": "0" * 12, "gone": "1"}, "dirty": True},
            "commit `abcdef1` with uncommitted changes; the sink and gone sources have changed since.",
        ),
        (
            {"commit": None, "sources": None},
            "unknown commit; sources not recorded, treat as stale.",
        ),
    ],
)
def test_a_table_says_whether_it_is_stale(made: Path, fields: dict[str, Any], sentence: str) -> None:
    for group, found in (fields["sources"] or {}).items():
        fields["sources"][group] = source_groups.group_hash(group) if found == "now" else found
    protocol.write(record(**fields, fps=2.5, rows=[{"batch": 8, "us": 7}]))
    tables: dict[str, pages.Table] = {"t": lambda records: [f"| {records('made')['fps']} |"]}
    page = Path("/docs/page.md")
    text = pages.render("a\n<!-- results: t -->\nold\n<!-- end -->\nb", page, tables)
    assert text.startswith("a\n<!-- results: t -->\n| 2.5 |\n") and text.endswith("<!-- end -->\nb")
    assert f"CPU, 2 cores, 2026-01-02, {sentence}" in text and "old" not in text
    assert pages.render(text, page, tables) == text


def test_values_in_the_text(made: Path) -> None:
    protocol.write(record(fps=2.5, rows=[{"batch": 1, "us": 2.0}, {"batch": 8, "us": 7.0}]))
    dates = "<!-- results: values -->\n<!-- end -->"

    def shown(expression: str, rest: str = dates) -> str:
        return pages.render(f"<!-- value: {expression} -->?<!-- end --> {rest}", Path("/docs/page.md"), {})

    assert "-->2.50<!-- end -->" in shown("made.fps:.2f") and "commit `abcdef1`" in shown("made.fps")
    assert "-->3.5x<!-- end -->".replace("x", "") in shown("made.rows[batch=8].us / made.rows[batch=1].us")
    for wrong in ("made.nothing", "made.rows[batch=3].us", "nothing.fps"):
        with pytest.raises(LookupError):
            shown(wrong)
    with pytest.raises(LookupError, match="results: values"):
        shown("made.fps", "")


def test_a_table_without_its_record_says_so(made: Path) -> None:
    tables: dict[str, pages.Table] = {"t": lambda records: [str(records("gone"))]}
    text = pages.render("<!-- results: t --><!-- end -->", Path("/docs/page.md"), tables)
    assert "*Not measured yet: there is no record gone.*" in text
    with pytest.raises(LookupError, match="there is no table u"):
        pages.render("<!-- results: u --><!-- end -->", Path("/docs/page.md"), tables)


def test_no_circle_between_benchmark_modules() -> None:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "benchmarks").rglob("*.py")
    }
    names = {name.removesuffix(".__init__"): path for name, path in paths.items() if "standin" not in name}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            graph.setdefault(name, set()).update(other for other in found if other in names and other != "benchmarks")
    graphlib.TopologicalSorter(graph).prepare()
