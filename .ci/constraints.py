"""Print the installed version of every package that framefuse needs, directly or not, as pip's constraints."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

EXTRAS = "", "ort"
"""Extras whose packages are on machines without a GPU."""


def needed(name: str, extras: tuple[str, ...], found: dict[str, str]) -> None:
    """Add the versions of what a package needs."""
    from packaging.requirements import Requirement

    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(requirement.name).version
        except PackageNotFoundError:
            continue
        needed(requirement.name, ("", *requirement.extras), found)


def main() -> None:
    found: dict[str, str] = {}
    needed("framefuse", EXTRAS, found)
    print(
        "# Versions that are tested together: pip install -c constraints.txt framefuse. Written by `make constraints`."
    )
    print("\n".join(f"{name}=={version}" for name, version in sorted(found.items())))


if __name__ == "__main__":
    main()
