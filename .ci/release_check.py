"""What a release must be: `make release-check`. Reads the sdist and the wheel in dist/, which twine has checked."""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEEL_MB = 60
"""Upper limit of a file that PyPI takes without asking is 100 MB."""


def problems(wheel: Path, sdist: Path) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    wanted = {
        f"wheel has no {name}": any(item.endswith(name) for item in names)
        for name in ("dist-info/licenses/LICENSE", "framefuse/py.typed", "framefuse/_lib/framefuse-x86-64-v3.so")
    }
    wanted |= {
        f"sdist has no {name}": name in sources for name in ("LICENSE", "README.md", "CHANGELOG.md", "hatch_build.py")
    }
    wanted |= {f"version {version} is not that of {file.name}": f"-{version}" in file.name for file in (wheel, sdist)}
    wanted |= {
        f"metadata has no {field}": re.search(rf"^{field}: .", metadata, re.M) is not None
        for field in ("License-Expression", "License-File", "Requires-Python", "Summary", "Keywords")
    }
    wanted[f"CHANGELOG.md has neither [{version}] nor [Unreleased]"] = any(
        f"## [{title}]" in (ROOT / "CHANGELOG.md").read_text() for title in (version, "Unreleased")
    )
    wanted[f"the wheel is larger than {WHEEL_MB} MB"] = wheel.stat().st_size < WHEEL_MB * 1e6
    foreign = [name for name in names if name.startswith(("tests/", "benchmarks/", "training/"))]
    wanted[f"the wheel has {foreign[:3]}"] = not foreign
    return [text for text, holds in wanted.items() if not holds]


def main() -> int:
    (wheel,), (sdist,) = ROOT.glob("dist/*.whl"), ROOT.glob("dist/*.tar.gz")
    found = problems(wheel, sdist)
    for path in (wheel, sdist):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    print("\n".join(found) or "ready for a release")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
