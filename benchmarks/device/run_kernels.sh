#!/usr/bin/env bash
# On the GPU machine, in the repository's root, after bundle.sh filled .whl/ (groups core, checks, peers): tests, sanitizers, benchmark.
#
#     benchmarks/device/run_kernels.sh [tests|sanitize|bench|all] [ROWS...]     # ROWS: of benchmarks.kernels
#
# Logs and results go to $OUT (default: runs/device). A step that fails or runs out of its time does not stop the next;
# the last lines say what each gave. All steps together end within 9 minutes.
set -uo pipefail
STEPS=${1:-all}
shift || true
OUT=${OUT:-runs/device}
PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/site}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$SITE" PYTHONDONTWRITEBYTECODE=1
SUMMARY=()

step() { # step NAME SECONDS LOG COMMAND...: run, keep the log, remember how it ended
    local name=$1 limit=$2 file=$3 start=$SECONDS
    shift 3
    echo "== $name: ${*: -4}" | tee -a "$OUT/$file"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee -a "$OUT/$file"
    local code=${PIPESTATUS[0]}
    SUMMARY+=("$name: exit $code$([ "$code" -eq 124 ] && echo ' (out of time)'), $((SECONDS - start)) s, $file")
}

wants() { [ "$STEPS" = all ] || [ "$STEPS" = "$1" ]; }

step install 120 setup.log "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --disable-pip-version-check --target "$SITE" .whl/*/*.whl

# --noconftest: the fixture there builds the kernels, which needs TVM; the wheel in $SITE holds them built.
PYTEST=("$PYTHON" -m pytest --noconftest -p no:cacheprovider -q -m gpu --tb=short --continue-on-collection-errors)
TESTS=(tests/kernels/test_kernels_*.py)

if wants tests; then
    step tests 150 tests.log "${PYTEST[@]}" --durations=8 "${TESTS[@]}"
fi
if wants sanitize; then
    # Pooled memory hides reads beyond an array, so every allocation is its own; the tests are a sample of them all.
    # Ten thousand cases would be all that there is time for.
    SAMPLE=(-p benchmarks.device.sample -o timeout=0 -k "not ten_thousand")
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    step memcheck 120 sanitizer.log env SAMPLE_SIZE="${MEMCHECK:-36}" \
        compute-sanitizer --tool memcheck --error-exitcode 9 --print-limit 20 "${PYTEST[@]}" "${SAMPLE[@]}" "${TESTS[@]}"
    step racecheck 80 sanitizer.log env SAMPLE_SIZE="${RACECHECK:-14}" \
        compute-sanitizer --tool racecheck --error-exitcode 9 --print-limit 20 "${PYTEST[@]}" "${SAMPLE[@]}" "${TESTS[@]}"
    unset PYTORCH_NO_CUDA_MEMORY_CACHING
fi
if wants bench; then
    step bench 200 bench.log "$PYTHON" -m benchmarks.kernels gpu --seconds 170 "$@"
    cp benchmarks/records/kernels_gpu.json "$OUT"/
fi

echo "== summary"
printf '%s\n' "${SUMMARY[@]}" | tee "$OUT/summary.txt"
for log in tests sanitizer; do
    [ -e "$OUT/$log.log" ] || continue
    grep -E '^(FAILED|ERROR) ' "$OUT/$log.log" | cut -c1-160 | head -25
    grep -E '^[0-9]+ (passed|failed|skipped|deselected|error)|ERROR SUMMARY|RACECHECK SUMMARY' "$OUT/$log.log"
done
exit 0
