"""CUDA below kernels and engines: device, arrays, streams, compiled kernels, launches and errors.

device.py       CuPy, current GPU, errors      kernel.py       load and launch compiled kernels
cubins.py       CUDA source -> machine code    nvrtc.py        NVIDIA's run-time compiler
launch_plan.py  recorded launches, memory      driver.py       short driver calls that hold the GIL
"""
