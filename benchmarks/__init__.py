"""Benchmarks: what framefuse costs beside what a user would have picked instead.

protocol.py      how everything here is timed, what is recorded, where results are saved
scene.py         the procedural moving image;  clips.py  writes it as video files
models.py        YOLOv8n and YOLOv5s as tables, over detection_heads.py and the eager builder model_graph.py
peers.py         one way to run a video through a detector, in a process of its own
peer_models.py   the OpenVINO folders that ultralytics loads
end_to_end.py    all of them side by side, interleaved
gpu_sources.py   on which sources a GPU result was measured; results_table.py --check names the stale ones
cupti_trace.py   every copy and call of CUDA;  ledger.py  the copy ledger beside it
tvm_tuning.py    engine tvm untuned and tuned on the CPU;  tvm_cuda.py  it beside engine cudnn
memory.py        bandwidth, page faults, and how frames that were decoded on the host enter a GPU best
peers_env.sh     makes the environment that the peers need (never a dependency of framefuse)
"""
