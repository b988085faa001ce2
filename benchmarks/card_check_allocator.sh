#!/bin/bash
# gpumem's own allocator on a real GPU, in one call of nine minutes at most: the nine steps by the demo, by CuPy and by
# PyTorch; both libraries in one program; programs under our allocator and under PyTorch's own, decision by decision;
# the card taken whole; what a pair and a training step cost. Prints a short table last.
#
#   OUT=results benchmarks/card_check_allocator.sh      the whole log is card_check_allocator.log
#   WHEELS=folder …                                     installs the wheels in it first, for a machine without network
#   PYTHON=…                                            another interpreter than python3
#   SKIP_INSTALL=1 …                                    gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_check_allocator CARD_SECONDS=540
. benchmarks/card_parts.sh

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

# nine_steps TRACE PROGRAM [OPTIONS…]: a sample that carries the figures of the nine steps
nine_steps() {
  local trace=$1 program=$2
  shift 2
  sample "$trace" "$program" 0 "$@" &&
    "$PYTHON" tests/integration/gpu/compare_allocators.py --check-nine-steps "$OUT/$trace.gpumem" &&
    gpumem replay "$OUT/$trace.gpumem"
}

cupy_exhaust() {
  gpumem run -f -o "$WORK/cupy_oom.gpumem" tests/integration/gpu/cupy_out_of_memory.py &&
    gpumem summary "$WORK/cupy_oom.gpumem" | head -20
}

# Both libraries in one program, in both orders: on an allocator each, and sharing ours.
cupy_beside_torch() {
  local choice order
  for choice in auto gpumem; do
    for order in torch-first cupy-first; do
      gpumem run -f -o "$WORK/both.gpumem" --allocator "$choice" tests/integration/gpu/cupy_beside_torch.py "$order" &&
        gpumem replay "$WORK/both.gpumem" | sed "s/^Exact/$choice, $order: exact/" || return
    done
  done
}
export -f demo nine_steps cupy_exhaust cupy_beside_torch

part install 120 bash -c install
part doctor 40 gpumem doctor
part demo 60 bash -c demo
part "nine steps" 60 bash -c "nine_steps nine_steps_own nine_steps --allocator gpumem"
part "CuPy nine steps" 60 bash -c "nine_steps nine_steps_cupy nine_steps_cupy"
part "CuPy exhaustion" 60 bash -c cupy_exhaust
part "CuPy beside torch" 90 bash -c "set -o pipefail; cupy_beside_torch"
part "equal to native" 270 "$PYTHON" tests/integration/gpu/compare_allocators.py --timeout 60 --folder "$WORK"
part "CuPy pairs" 40 "$PYTHON" benchmarks/cupy_pairs.py
part overhead 120 "$PYTHON" benchmarks/recording_overhead.py --processes 1 --modes bare,gpumem,own -o "$OUT/own_overhead.json"

# Of each part what it said itself, then the table.
{
  section demo | grep -E '^demo: '
  section "nine steps" | grep -E '^nine steps: |exact'
  section "CuPy nine steps" | grep -E '^nine steps: |exact'
  section "CuPy exhaustion" | grep -E '^(OutOfMemoryError|1048576)'
  section "CuPy beside torch" | grep -E '(exact|parts from|kept;)'
  section "equal to native" | grep -E '(  equal|DIFFERENT|under both allocators)$'
  section "CuPy pairs" | grep -E '^CuPy pair'
  section overhead | grep -E '^(medians|pair|step| {10,}bare)'
} | conclude
