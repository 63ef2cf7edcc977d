#!/usr/bin/env bash
# On the GPU machine, in the repository's root: the GPU tests, and every recorded result of a GPU measured anew.
#
#     benchmarks/device/run_gpu.sh [first|second|all|STEP...]      # STEP+STEP: at the same time, where nothing is timed
#
# first: network program views central memory network11 precision; second: accuracy+parity tests files ledger engines adaptive fleet throughput
# planner heads cold faults. Only where they are named: matte, mattes of VR video, which need OpenCV and PyAV beside; networks and
# layers, nine networks beside peers and their convolutions one by one; growth, what runs leave behind; body, see below.
# They are two calls on a machine with one GPU, or two at the same time where there are two GPUs:
#
#     TOTAL=300 CUDA_VISIBLE_DEVICES=0 WORK=/tmp/lane0 OUT=$OUT/lane0 benchmarks/device/run_gpu.sh first &
#     TOTAL=300 CUDA_VISIBLE_DEVICES=1 WORK=/tmp/lane1 OUT=$OUT/lane1 benchmarks/device/run_gpu.sh second; wait
#
# Parity runs CPU engines on all cores, which halves what hangs on the CPU (program, central, memory, files, fleet): beside it
# only what the GPU itself times, such as network and precision, is worth recording.
#
# A call ends within TOTAL seconds (560); a step that fails or runs out of its time does not stop the next. Kernels have a
# script of their own, run_kernels.sh. Packages of bundle.sh (groups core, engines, video, checks) are installed into $SITE
# where .whl/ holds them; framefuse is that of the checkout where its kernels are built there, else the wheel's.
#
# $OUT (default: runs/device) gets results.tar.gz, which unpacked in the repository's root puts benchmarks/records in place
# (`make results` then writes the pages), logs.tar.gz, summary.txt, and plans.tar.gz: the convolution kernels that were chosen, which
# PLANS=plans.tar.gz gives to the next run on such a machine; network and network11 choose anew, since that is timed.
# MODELS: a folder with yolov8n.onnx, yolov5s.onnx, yolo11n.onnx or 1080p.mp4, which are made where it has none.
# Step tvm needs TVM's compiler, or group tvm of bundle.sh and TVM: a folder that `python -m benchmarks.gpu.tvm_cuda
# yolov8n.onnx --compile TVM` made elsewhere. Where its compiler is, step tune comes first: TUNE_SECONDS for each of both
# models, with TRIALS schedules for each of their functions at most. TVM_SITE: the folder where the packages of group tuner were
# installed; `.whl` must not hold them, since all packages there go into $SITE.
# NETWORKS: the folder with the files of networks and layers, or one that `python -m benchmarks.seeded_weights pack FILES --to NETWORKS`
# made of them elsewhere. ORT: the folder with ONNX Runtime for CUDA, for networks alone: its libraries must not be found by the others.
# NETWORKS_ARGUMENTS: of benchmarks.gpu.networks (--batches 1 8 --surface); it ends within NETWORKS_SECONDS (500). MATTE_ARGUMENTS: of
# benchmarks.gpu.matte.
# Step train: scout-n-pose by training/branches.py; its weights.pt comes back in $OUT/train. Step body: body-n by training/train.py
# in TRAIN_SECONDS, from images that training/rendering.py renders beside it; its weights.pt comes back, too.
# SOAK: seconds of the soak of throughput (60). FILES_SECONDS, ENGINES_SECONDS: after so many no further row of files, no further case of engines is begun. FLEET_FILES:
# how many are in the list (48); two GPUs need a longer one. TESTS: those to be run, with options of pytest.
# COMMIT=$(git describe --always --dirty), from where the tree comes, goes into the results.
set -uo pipefail
OUT=${OUT:-runs/device}
PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/site}
TOTAL=${TOTAL:-560}
WORK=${WORK:-/tmp/framefuse-run}
MODELS=${MODELS:-$WORK}
FIRST="network program views central memory network11 precision"
SECOND="accuracy+parity tests files ledger engines adaptive fleet throughput planner heads cold faults" # tests and faults take all of the GPU's memory
NAMED="tune tvm train body matte networks layers growth"
TESTS=${TESTS:-tests/runtime/test_cuda_*.py tests/engines/test_cudnn_*.py tests/runtime/test_ledger.py tests/runtime/test_device.py tests/engines/test_engine_onnxruntime.py
    tests/engines/test_engine_torch.py tests/fleet/test_fleet.py tests/sources/test_sources_nvdec.py}
STEPS=()
for word in "${@:-all}"; do
    case $word in
        first) STEPS+=($FIRST) ;;
        second) STEPS+=($SECOND) ;;
        all) STEPS+=($FIRST $SECOND tvm) ;;
        *) for name in ${word//+/ }; do
                [[ " ${FIRST//+/ } ${SECOND//+/ } $NAMED " == *" $name "* ]] ||
                    { echo "no step $name: first, second, all, $FIRST $SECOND $NAMED" >&2; exit 2; }
            done
            STEPS+=("$word") ;;
    esac
done
if [[ " ${STEPS[*]//+/ } " =~ " "(networks|layers)" " ]] && ! compgen -G "${NETWORKS:-}/*.onnx" > /dev/null; then
    echo "networks and layers need NETWORKS, a folder of ONNX files" >&2
    exit 2
fi
LOGS=$WORK/logs
rm -rf "$LOGS"
mkdir -p "$OUT" "$LOGS"
BEGUN=$WORK/begun
touch "$BEGUN"
[ -d "$WORK/cache" ] || [ -z "${PLANS:-}" ] || tar xf "$PLANS" -C "$WORK"
export PYTHONUNBUFFERED=1 XDG_CACHE_HOME=$WORK/cache
unset PYTHONDONTWRITEBYTECODE # each process would compile what it imports, for a second
[ -d src/framefuse/_lib ] && SOURCES=$PWD/src:$PWD || SOURCES=$PWD
export PYTHONPATH=$SOURCES:$SITE${PYTHONPATH:+:$PYTHONPATH}
SUMMARY=$OUT/summary.txt
: > "$SUMMARY"
say() { echo "$*" | tee -a "$SUMMARY"; }

step() { # step NAME SECONDS COMMAND...: run, keep the log, remember how it ended
    local name=$1 limit=$2 start=$SECONDS left=$((TOTAL - SECONDS)) code
    shift 2
    if [ "$left" -lt 10 ]; then
        say "$name: not begun, $TOTAL s are over"
        return 1
    fi
    echo "== $name: $*" >> "$LOGS/$name.log"
    timeout --kill-after=5 $((limit < left ? limit : left)) "$@" >> "$LOGS/$name.log" 2>&1
    code=$?
    say "$name: exit $code$([ "$code" -eq 124 ] && echo ' (out of time)'), $((SECONDS - start)) s, ended at $SECONDS s"
    tail -n 1 "$LOGS/$name.log" | cut -c1-200
    return "$code"
}

bench() { # bench NAME SECONDS MODULE ARGUMENTS...
    local name=$1 limit=$2 module=$3
    shift 3
    step "$name" "$limit" "$PYTHON" -m "benchmarks.$module" "$@"
}

made() { # made FILE COMMAND...: what a benchmark needs, made by COMMAND once a machine
    local path=$WORK/$1 part=$WORK/part-$1
    shift
    [ ! -e "$path" ] || return 0
    cp "$MODELS/${path##*/}" "$part" 2> /dev/null || timeout "$TOTAL" "$PYTHON" "$@" "$part"
    mv "$part" "$path"
}

needs() { # needs FILE...: wait until they are made, or no step can begin any more
    for file in "$@"; do
        while [ ! -e "$WORK/$file" ] && [ "$SECONDS" -lt $((TOTAL - 10)) ]; do sleep 0.2; done
    done
}

if compgen -G ".whl/*/*.whl" > /dev/null; then
    step install 120 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --disable-pip-version-check --target "$SITE" .whl/*/*.whl
fi

V8=$WORK/yolov8n.onnx V5=$WORK/yolov5s.onnx V11=$WORK/yolo11n.onnx CLIP=$WORK/clip.mp4 SHORT=$WORK/1080p.mp4
wanted() { [[ " ${STEPS[*]//+/ } " == *" $1 "* ]]; }
{
    made yolov8n.onnx -m benchmarks.models yolov8n --out &
    ! { wanted engines || wanted tune || wanted tvm || wanted planner; } || made yolov5s.onnx -m benchmarks.models yolov5s --out &
    ! { wanted network11 || wanted planner; } || made yolo11n.onnx -m benchmarks.models_yolo11 --out &
    if wanted files || wanted ledger || wanted fleet || wanted planner || wanted cold; then
        made 1080p.mp4 -c 'import shutil, sys; from benchmarks.clips import clip; shutil.copy(clip("1080p"), sys.argv[1])'
        made clip.mp4 -c 'import sys; from pathlib import Path; from benchmarks.clips import long_clip
long_clip(Path(sys.argv[1]), Path(sys.argv[2]), 4)' "$SHORT"
    fi
    if wanted networks || wanted layers; then
        made networks -m benchmarks.seeded_weights unpack "$NETWORKS"/*.onnx --to
    fi
    wait
} >> "$LOGS/made.log" 2>&1 &

run_tests() {
    # shellcheck disable=SC2086 # several
    step tests 420 "$PYTHON" -m pytest --noconftest -p no:cacheprovider -p benchmarks.device.gpu_tests -q -m gpu --tb=short \
        --continue-on-collection-errors --durations=10 $TESTS
}

run_train() {
    step train 460 "$PYTHON" -m training.branches scout-n-pose --device cuda --cache "$WORK/frames" --out "$OUT/train" --seconds "${TRAIN_SECONDS:-340}"
}

run_body() {
    setsid "$PYTHON" -m training.rendering body-n --cache "$WORK/frames" >> "$LOGS/rendering.log" 2>&1 &
    local rendering=$!
    step body $((${TRAIN_SECONDS:-340} + 150)) "$PYTHON" -m training.train body-n --shipped --device cuda --cache "$WORK/frames" \
        --out "$OUT/train" --seconds "${TRAIN_SECONDS:-340}" --patience 200
    kill -- "-$rendering" 2> /dev/null
    wait "$rendering"
}

run_networks() { # shellcheck disable=SC2086 # several
    local most=${NETWORKS_SECONDS:-500}
    PYTHONPATH=$PYTHONPATH${ORT:+:$ORT} bench networks $((most + 60)) gpu.networks --models "$WORK/networks" --budget "$most" \
        ${NETWORKS_ARGUMENTS:---surface}
}

run_layers() { bench layers 240 gpu.layers --models "$WORK/networks"; }

run_growth() { bench growth 560 growth --device cuda --frames 12288 --cycles 200 --swaps 1000; }

run_network() {
    rm -rf "$WORK/cold"
    XDG_CACHE_HOME=$WORK/cold bench network 200 gpu.cudnn_network "$V8" --batches 1 8 32
    "$PYTHON" - "$WORK/cold/framefuse/cudnn" "$WORK/cache/framefuse/cudnn" << 'END' # for the steps that follow
import json, shutil, sys
from pathlib import Path

cold, cache = map(Path, sys.argv[1:])
for path in cold.glob("*.json"):
    new, old = json.loads(path.read_text()), cache / path.name
    if old.exists():
        new["plans"] = json.loads(old.read_text())["plans"] | new["plans"]
    shutil.copytree(path.with_suffix(""), old.with_suffix(""), dirs_exist_ok=True)
    old.write_text(json.dumps(new))
END
}

run_network11() { XDG_CACHE_HOME=$WORK/cold bench network11 120 gpu.cudnn_network "$V11" --batches 1 32; }

run_precision() { bench precision 200 gpu.cudnn_precision "$V8" scout-s --batches 1 8 32 --seconds 150; }

run_tune() {
    for model in "$V8" "$V5"; do
        PYTHONPATH=${TVM_SITE:+$TVM_SITE:}$PYTHONPATH step tune $((${TUNE_SECONDS:-120} + 90)) "$PYTHON" -m framefuse tune "$model" \
            --target cuda --precision fp16 --size 640x640 --trials "${TRIALS:-32}" --slice "${TUNE_SECONDS:-120}"
    done
}

run_tvm() {
    local PYTHONPATH=${TVM_SITE:+$TVM_SITE:}$PYTHONPATH
    if [ -n "${TVM:-}" ]; then bench tvm 200 gpu.tvm_cuda "$V8" "$V5" --compiled "$TVM"; else bench tvm 200 gpu.tvm_cuda "$V8" "$V5"; fi
}

run_program() { bench program 120 gpu.program "$V8" --batches 1 8 32; }

run_matte() { bench matte 440 gpu.matte ${MATTE_ARGUMENTS:-}; } # shellcheck disable=SC2086 # several
run_views() { bench views 150 gpu.views "$V8"; }

run_central() { bench central 70 gpu.central_table "$V8"; }

run_accuracy() { bench accuracy 120 gpu.accuracy --models scout-n scout-s; }

run_files() {
    local plans
    plans=$("$PYTHON" -c '
import json
def row(name, streams, **more):
    return {"row": name, "streams": streams, **more}
def decode(streams, decoder="threaded", **more):
    return row("decode", streams, decoder=decoder, **more)
def fleet(streams, processes, **more):
    return row("fleet", streams, processes=processes, **more)
rows = []
for streams, times in (14, 4), (48, 1), (8, 4): # beside each other: of files of one length
    rows += [fleet(streams, 3, times=times), decode(streams, times=times), decode(streams, processes=3, times=times)]
rows[3:3] = [fleet(1, 3, times=15), row("detect", 1, times=15)] # 10 minutes
rows += [row("detect", 14, times=4), decode(14, "core", times=4)] # the first of these takes half a minute
print(json.dumps(rows))')
    step files_kernels 60 "$PYTHON" -c 'import sys; from pathlib import Path; from framefuse.engines import EngineOptions, open_engine
open_engine("cudnn", Path(sys.argv[1]), EngineOptions("cuda")).execution(8, 384, 640)' "$V8" # measured once, not by the first row
    bench files $((${FILES_SECONDS:-125} + 45)) gpu.files "$CLIP" --model "$V8" --seconds 45 --total "${FILES_SECONDS:-125}" --plans "$plans"
}

run_ledger() { bench ledger 70 gpu.ledger "$SHORT" "$V8"; }

run_memory() { bench memory 70 gpu.memory --model "$V8"; }

run_engines() { # rows of ONNX Runtime for CUDA are kept where that is not here (bundle.sh, group ort)
    local left=$((TOTAL - SECONDS - 30)) most=${ENGINES_SECONDS:-40}
    mkdir -p benchmarks/.cache
    cp "$V8" "$V5" benchmarks/.cache/ # where it looks
    bench engines $((most + 160)) engines --device cuda --keep --seconds $((left < most ? left : most))
    left=$((TOTAL - SECONDS - 30))
    bench engines $((most + 160)) engines --device cuda --keep --seconds $((left < most ? left : most)) --batches 8 32 \
        --engines cudnn onnxruntime torch # what has batches
}

run_fleet() { # a second GPU where CUDA shows one
    local plans=(0,0,0)
    ! "$PYTHON" -c 'import cupy; raise SystemExit(cupy.cuda.runtime.getDeviceCount() < 2)' || plans+=(0,0,0,1,1,1)
    bench fleet 300 gpu.fleet "$SHORT" "$V8" --plans "${plans[@]}" --seconds 300 --files "${FLEET_FILES:-48}" --repeat 6
}

run_adaptive() { bench adaptive 540 gpu.adaptive --clips "$WORK/clips"; }

run_throughput() { bench throughput $((${SOAK:-60} + 150)) throughput --device cuda --seconds 4 --soak "${SOAK:-60}"; }

run_faults() { step faults 260 "$PYTHON" -m benchmarks.gpu.faults; }

run_planner() { bench planner 700 gpu.planner "$SHORT" --models scout-n scout-s body-n "$V5" "$V11" "$V8"; }

run_heads() { bench heads 60 gpu.heads; }

run_cold() { bench cold 200 gpu.cold "$SHORT" "$V8" --rounds 1; }

run_parity() { bench parity 300 parity --device cuda --jobs 6; }

for word in "${STEPS[@]}"; do
    begun=()
    for name in ${word//+/ }; do
        case $name in
            network | program | views | central | memory | precision) needs yolov8n.onnx ;;
            network11) needs yolo11n.onnx ;;
            files | ledger | fleet | cold) needs yolov8n.onnx clip.mp4 ;;
            networks | layers) needs networks ;;
            engines | tune | tvm) needs yolov8n.onnx yolov5s.onnx ;;
            planner) needs yolov8n.onnx yolov5s.onnx yolo11n.onnx clip.mp4 ;;
        esac
        if [ "$name" = "$word" ]; then "run_$name"; else "run_$name" & begun+=($!); fi
    done
    [ ${#begun[@]} -eq 0 ] || wait "${begun[@]}"
done

tar czf "$OUT/logs.tar.gz" -C "$WORK" logs
[ -d "$WORK/cache" ] && tar czf "$OUT/plans.tar.gz" -C "$WORK" cache
find benchmarks/records -type f -newer "$BEGUN" -print0 | tar czf "$OUT/results.tar.gz" --null -T -
if [ -e "$LOGS/tests.log" ]; then
    { grep -E '^(FAILED|ERROR) ' "$LOGS/tests.log" | cut -c1-200 | head -25
        grep -E '^[0-9]+ (passed|failed|skipped|deselected|error)' "$LOGS/tests.log"; } | tee -a "$SUMMARY"
fi
say "all: $SECONDS s"
exit 0
