"""CUDA below kernels and engines: device, arrays, streams, compiled kernels, launches and errors.

device.py       CuPy, arrays, addresses        kernel.py       load and launch compiled kernels
cubins.py       CUDA source -> machine code    nvrtc.py        NVIDIA's run-time compiler
launch_plan.py  recorded launches              workspace.py    scratch memory of a call
pools.py        memory, streams, handles       driver.py       short driver calls that hold the GIL
errors.py       CUDA errors -> typed errors    current.py      the current GPU of a thread
"""
