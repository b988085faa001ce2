#!/bin/bash
# Everything that needs a real GPU, in one call of less than nine minutes: installs this checkout for `python3`, records
# the sample programs, runs the GPU tests and the overhead benchmark, and prints a short table last.
#
#   OUT=results benchmarks/card_check.sh      six files in $OUT, none large; the whole log is card_check.log
#   WHEELS=folder …                           installs the wheels in it first, for a machine without network
#   PYTHON=…                                  another interpreter than python3
#   SKIP_INSTALL=1 …                          gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_check CARD_SECONDS=530
. benchmarks/card_parts.sh

reports() {
  gpumem timeline "$OUT/nine_steps.gpumem" && gpumem snapshot "$OUT/nine_steps.gpumem" --at "mark:5 c on the GPU again" &&
    gpumem snapshot "$OUT/out_of_memory.gpumem" --at oom | head -60
}
export -f reports

part install 120 bash -c install
part doctor 40 gpumem doctor
for name in nine_steps gpt2_train resnet50_train; do part "$name" 60 bash -c "sample $name $name 0"; done
part out_of_memory 60 bash -c "sample out_of_memory out_of_memory 1"
part reports 30 bash -c reports
part "equal to history" 200 "$PYTHON" tests/integration/gpu/compare_with_history.py --timeout 180 --folder "$WORK"
part overhead 120 "$PYTHON" benchmarks/recording_overhead.py --processes 1 -o "$OUT/recording_overhead.json"
part "GPU tests" 280 "$PYTHON" -m pytest --gpu -m gpu -q -p no:cacheprovider --deselect \
  tests/integration/gpu/test_recorded_programs.py::test_recording_equals_pytorch_s_own_history tests

# Of each part what it said itself, then the table.
{
  section "equal to history" | grep -E '(  equal|DIFFERENT|FAILED|workloads equal)$'
  section overhead | grep -E '^(medians|pair|step| {10,}bare)'
  section "GPU tests" | grep -E '^(FAILED|ERROR) |(passed|failed|errors?) in '
} | conclude
