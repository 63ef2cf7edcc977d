"""Kernels in TVM TensorIR. Read by `kernels/build.py` alone; TVM is never imported at run time."""
