"""The pages in a browser: text wraps, so that nothing has to be scrolled sideways on a usual screen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from framefuse.report.html import _section, _table, page

MEASURE = """<script>document.title = 'wider by ' + Math.max(...[...document.querySelectorAll('.scroll')].map(
    (one) => one.scrollWidth - one.clientWidth))</script>"""


def test_tables_of_text_fit_their_page(tmp_path: Path) -> None:
    if (browser := shutil.which("chromium")) is None:
        pytest.skip("needs Chromium")
    found = "5 boxes, 0.038 px and 0.00043 of score at most, IoU 1.000"
    limit = "IoU >= 0.8 or edges +-0.5 px of the input, score +-0.1"
    rows = [("within", "engine onnxruntime fp32", found, limit, "on the reference's pixels, as float32")] * 3
    html = tmp_path / "page.html"
    html.write_text(
        page("parity", [_section("", _table(("", "stage", "found", "limit", ""), rows, texts=5))]) + MEASURE
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1000,1400"]
    done = subprocess.run([browser, *options, "--dump-dom", html.as_uri()], capture_output=True, text=True, timeout=60)
    assert re.findall(r"<title>(.*)</title>", done.stdout) == ["wider by 0"]
