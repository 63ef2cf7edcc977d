"""Benchmarks: what framefuse costs beside what a user would have picked instead.

    python -m benchmarks.cpu          every record of the CPU;  benchmarks/device/run_gpu.sh  those of a GPU
    python -m benchmarks.results      every table of the docs, from the records

protocol.py       how everything here is timed, and what a record says
source_groups.py  which sources can change a result, by hash
scene.py          the procedural moving image;  clips.py  writes it as video files
models.py         YOLOv8n and YOLOv5s as tables, over detection_heads.py and the eager builder model_graph.py
engines.py        every engine of a machine, CPU or GPU;  parity.py  their certificates;  engine_table.py  what they can
cpu/  gpu/        what is timed on either;  kernels/  the kernels alone, on both
tflite.py         TensorFlow Lite to ONNX, for the networks of mediapipe that  selfie.py  compares mattes with
peers/            what framefuse is compared with end to end, in an environment of its own
device/           scripts for a GPU machine without internet
records/          what was measured;  results/  makes the tables of them
"""
