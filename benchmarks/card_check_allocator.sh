#!/bin/bash
# gpumem's own allocator on a real GPU, in one call of less than eight minutes: the nine steps by the demo, by CuPy and by
# PyTorch; programs under our allocator and under PyTorch's own, decision by decision; the card taken whole; what a pair
# and a training step cost. Prints a short table last.
#
#   OUT=results benchmarks/card_check_allocator.sh      the whole log is card_check_allocator.log
#   WHEELS=folder …                                     installs the wheels in it first, for a machine without network
#   PYTHON=…                                            another interpreter than python3
#   SKIP_INSTALL=1 …                                    gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
OUT=$(realpath -m "${OUT:-card_check_results}")
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d)
LOG=$OUT/card_check_allocator.log
DEADLINE=$((SECONDS + 460))
TABLE=()
mkdir -p "$OUT"
: >"$LOG"

# part NAME SECONDS COMMAND…: runs a command into the log, never beyond its own limit or the whole's
part() {
  local name=$1 limit=$2 left=$((DEADLINE - SECONDS)) started=$SECONDS status
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    TABLE+=("$(printf '%-22s no time left' "$name")")
    return 1
  fi
  printf '\n==== %s: %s\n' "$name" "$*" >>"$LOG"
  timeout -k 5 "$limit" "$@" >>"$LOG" 2>&1
  status=$?
  printf '==== %s: exit %s after %s s\n' "$name" "$status" $((SECONDS - started)) >>"$LOG"
  TABLE+=("$(printf '%-22s exit %-3s %4s s' "$name" "$status" $((SECONDS - started)))")
  return $status
}

install() {
  [ -n "${SKIP_INSTALL:-}" ] && return
  if [ -n "${WHEELS:-}" ]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --upgrade "$WHEELS"/*.whl || return
  fi
  "$PYTHON" -m pip install -q --no-build-isolation --no-deps .
}

demo() {
  gpumem demo -f -o "$OUT/demo.gpumem" && gpumem demo -f -o "$WORK/demo.gpumem" --json >"$OUT/demo.json" &&
    "$PYTHON" - "$OUT/demo.json" <<'CHECK'
import json, sys
said = json.load(open(sys.argv[1]))
found = [(s["allocated_bytes"] >> 20, s["reserved_bytes"] >> 20) for s in said["steps"]]
expected = [(0, 0), (0, 2), (1024, 1026), (2048, 2050), (1024, 2050), (2048, 2050), (2048, 3074), (3072, 3074),
            (2048, 3074), (2048, 3074), (3072, 3074), (1024, 1024)]
print("demo:", "simulated" if said["simulated"] else said["name"], "every figure as PyTorch's" if found == expected else
      f"DIFFERENT {found}", "NVML", [s["nvml_process_bytes"] and s["nvml_process_bytes"] >> 20 for s in said["steps"]])
sys.exit(found != expected or said["simulated"])
CHECK
}

cupy_steps() {
  local folder=/tmp/training
  mkdir -p "$folder"
  cp sample_traces/scripts/nine_steps_cupy.py "$folder"
  (cd "$folder" && gpumem run -f -o "$OUT/nine_steps_cupy.gpumem" nine_steps_cupy.py) &&
    gpumem summary "$OUT/nine_steps_cupy.gpumem" &&
    "$PYTHON" tests/integration/gpu/compare_allocators.py --check-nine-steps "$OUT/nine_steps_cupy.gpumem"
}

cupy_exhaust() {
  gpumem run -f -o "$WORK/cupy_oom.gpumem" tests/integration/gpu/cupy_out_of_memory.py &&
    gpumem summary "$WORK/cupy_oom.gpumem" | head -20
}

export -f install demo cupy_steps cupy_exhaust
export PYTHON OUT WORK WHEELS=${WHEELS:-} SKIP_INSTALL=${SKIP_INSTALL:-}
PATH=$(dirname "$(command -v "$PYTHON")"):$PATH
export PATH PYTHONUNBUFFERED=1

part install 120 bash -c install
part demo 60 bash -c demo
part "CuPy nine steps" 60 bash -c cupy_steps
part "CuPy exhaustion" 60 bash -c cupy_exhaust
part "equal to native" 270 "$PYTHON" tests/integration/gpu/compare_allocators.py --timeout 60 --folder "$WORK"
part "CuPy pairs" 40 "$PYTHON" benchmarks/cupy_pairs.py
part overhead 90 "$PYTHON" benchmarks/recording_overhead.py --modes bare,gpumem,own -o "$OUT/own_overhead.json"
cp "$WORK/nine-steps.gpumem.gpumem" "$OUT/nine_steps_own.gpumem" 2>/dev/null
rm -rf "$WORK"

# The table, and of each part what it said itself.
section() { sed -n "/^==== $1: /,/^==== $1: exit /p" "$LOG"; }
{
  section demo | grep -E '^demo: '
  section "CuPy nine steps" | grep -E '^nine steps: '
  section "CuPy exhaustion" | grep -E '^(OutOfMemoryError|1048576)'
  section "equal to native" | grep -E '(  equal|DIFFERENT|under both allocators)$'
  section "CuPy pairs" | grep -E '^CuPy pair'
  section overhead | grep -E '^(medians|pair|step| {10,}bare)'
  printf '%s\n' "${TABLE[@]}"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "no nvidia-smi"
} 2>/dev/null | tee "$OUT/card_check_allocator.txt"
[[ "${TABLE[*]}" != *"exit "[1-9]* && "${TABLE[*]}" != *"no time"* ]]
