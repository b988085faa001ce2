#!/bin/bash
# What recording costs on a real GPU, in one call of less than ten minutes: pairs and training steps bare and under
# both ways of recording; steps recorded and not in one process; CuPy's pairs; the core alone; what the machine itself
# takes for the recorder's needs. Prints a short table last.
#
#   OUT=results benchmarks/card_bars.sh      the whole log is card_bars.log, every figure in bars.json and step.json
#   WHEELS=folder …                          installs the wheels in it first, for a machine without network
#   PYTHON=…                                 another interpreter than python3
#   SKIP_INSTALL=1 …                         gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_bars CARD_SECONDS=560
. benchmarks/card_parts.sh

machine() {
  printf 'kernel %s, clock source %s, %s\n' "$(uname -r)" \
    "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource 2>/dev/null || echo unknown)" \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
  grep -o -m1 -w -E 'constant_tsc|nonstop_tsc' /proc/cpuinfo | sort -u | xargs echo "counter:"
  df -T "${TMPDIR:-/tmp}" | tail -1 | awk '{print "file system of the journals: " $2}'
  c++ -O2 -std=c++17 benchmarks/machine_costs.cpp -o "$WORK/machine_costs" && "$WORK/machine_costs" "${TMPDIR:-/tmp}"
}
export -f machine

part install 100 bash -c install
part machine 20 bash -c machine
part core 40 "$PYTHON" benchmarks/pair_cost.py
part "CuPy pairs" 40 "$PYTHON" benchmarks/cupy_pairs.py
part step 110 "$PYTHON" benchmarks/step_cost.py --processes 3 --steps 120 -o "$OUT/step.json"
part overhead 380 "$PYTHON" benchmarks/recording_overhead.py --processes 4 --modes bare,bare_again,history,gpumem,off,own \
  -o "$OUT/bars.json"

# Of each part what it said itself, then the table.
{
  section machine | grep -v '^===='
  section core | grep -E '^(CPython|with|switched|[0-9]+ stacks| {10,}warm)'
  section "CuPy pairs" | grep -E '^CuPy pair'
  section step | grep -E '^(step|process|median|calls)'
  section overhead | grep -E '^(medians|pair|step| {10,}bare)'
} | conclude
