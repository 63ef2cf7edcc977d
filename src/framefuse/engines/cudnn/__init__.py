"""Engine cudnn: ONNX -> fused network -> one CUDA graph, from parts that pip installs.

network.py       what a fused network is            reading.py, heads.py, attention.py, nodes.py   from ONNX to it
rewriting.py     fewer and wider convolutions       placement.py           concatenation by slices
schedule.py      streams and shared memory          compiled.py            all of these: the front half, no GPU
reference.py     the same in NumPy                  launch.py              kernels between convolutions
convolutions.py  cuDNN's kernels, measured          plans.py, plan_cache.py  remembered
execution.py     the network on a GPU               engine.py              the engine
"""

from framefuse.engines.cudnn.engine import CudnnEngine, open_engine

__all__ = ["CudnnEngine", "open_engine"]
