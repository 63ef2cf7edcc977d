"""Engine openvino: the default on CPUs."""

from framefuse.engines.backend import Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "openvino",
    Capabilities(
        {"cpu": ("fp32", "bf16", "fp16", "int8")},
        cpu_flags={
            "bf16": ("avx512_bf16", "amx_bf16", "avx_ne_convert"),
            "fp16": ("avx512_fp16", "amx_fp16", "avx_ne_convert"),
        },
        survives_fork=False,
    ),
    opener="framefuse.engines.openvino.engine:OpenVinoEngine",
    needs={"cpu": Needs((Package("openvino", ("openvino",)),))},
)
