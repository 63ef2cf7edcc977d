"""Wheel build hook: compiles the kernels into the package and names the platform that the wheel runs on.

FRAMEFUSE_WHEEL_MACHINE=aarch64 builds the wheel of another machine; nothing has to be installed for that.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The libraries need nothing of libc but memset and would run on older systems; av, openvino and numpy would not.
GLIBC = "manylinux_2_28"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Adds `framefuse/_lib`, the libraries of one machine and the CUDA sources, to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = os.environ.get("FRAMEFUSE_WHEEL_MACHINE", platform.machine())
        if platform.system() != "Linux":
            raise RuntimeError(f"framefuse builds wheels on Linux only, not on {platform.system()}")
        root = Path(self.root)
        # Loaded by path: importing the package would need its dependencies, which a build environment does not have.
        source = root / "src" / "framefuse" / "kernels" / "build.py"
        spec = importlib.util.spec_from_file_location("framefuse_kernels_build", source)
        assert spec is not None and spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        built: list[Path] = kernels.build(machine)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{GLIBC}_{machine}"
        build_data["artifacts"] += [f"/{path.relative_to(root)}" for path in built]
