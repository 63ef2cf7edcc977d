"""CUDA, below kernels and engines: the device and its arrays, streams, compiled kernels, launches, driver errors.

device.py       CuPy, arrays, addresses        kernel.py       load and launch compiled kernels
cubins.py       CUDA source -> machine code    nvrtc.py        NVIDIA's run-time compiler
launch_plan.py  launches to repeat             workspace.py    scratch memory of a call
streams.py      pools of streams and handles   driver.py       short driver calls that keep the GIL
pools.py        memory pools                   current.py      the current GPU of a thread
errors.py       CUDA errors -> typed errors
"""
