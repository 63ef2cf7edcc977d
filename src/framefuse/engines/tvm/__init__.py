"""Engine tvm: ONNX -> Relax -> machine code, tuned by measurement.

package.py    the tvm package, imported late    targets.py   CPU and GPU by name
reading.py    ONNX -> Relax at one shape        compiling.py Relax -> shared library
halves.py     FP16 for the network alone        artifact.py  under the cache rule
offload.py    convolutions for cuDNN            nodes.py     what Relax's nodes are
convolve.py   what is called for them           schedules.py what TVM compiles, over a GPU's threads
memory.py     each execution's own              jit.py       CUDA source -> machine code, kept
records.py    the tuning database on disk       tuning.py    slices of tuning
engine.py     the engine                        on_gpu.py    its slots on CUDA
"""
