#!/bin/bash
# Everything that needs a real GPU, in one call of less than nine minutes: installs this checkout for `python3`, records
# the sample programs, runs the GPU tests and the overhead benchmark, and prints a short table last.
#
#   OUT=results benchmarks/card_check.sh      six files in $OUT, none large; the whole log is card_check.log
#   WHEELS=folder …                           installs the wheels in it first, for a machine without network
#   PYTHON=…                                  another interpreter than python3
set -u
cd "$(dirname "$0")/.."
OUT=$(realpath -m "${OUT:-card_check_results}")
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d)
LOG=$OUT/card_check.log
DEADLINE=$((SECONDS + 530))
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
  if [ -n "${WHEELS:-}" ]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --upgrade "$WHEELS"/*.whl || return
  fi
  "$PYTHON" -m pip install -q --no-build-isolation --no-deps .
}

sample() {
  # sample NAME EXIT ARGUMENTS…: records a sample program into $OUT and reports on it. It runs from a folder whose
  # name says nothing about the machine, as the trace keeps the paths of its frames.
  local name=$1 expected=$2 folder=/tmp/training status
  shift 2
  mkdir -p "$folder"
  cp "sample_traces/scripts/$name.py" "$folder"
  (cd "$folder" && gpumem run -f -o "$OUT/$name.gpumem" "$name.py" "$@")
  status=$?
  gpumem summary "$OUT/$name.gpumem" || return
  ls -l "$OUT/$name.gpumem"
  [ "$status" -eq "$expected" ]
}

reports() {
  gpumem timeline "$OUT/nine_steps.gpumem" && gpumem snapshot "$OUT/nine_steps.gpumem" --at "mark:5 c on the GPU again" &&
    gpumem snapshot "$OUT/out_of_memory.gpumem" --at oom | head -60
}

export -f install sample reports
export PYTHON OUT WHEELS=${WHEELS:-}
PATH=$(dirname "$(command -v "$PYTHON")"):$PATH
export PATH PYTHONUNBUFFERED=1

part install 120 bash -c install
part doctor 40 gpumem doctor
for name in nine_steps gpt2_train resnet50_train; do part "$name" 60 bash -c "sample $name 0"; done
part out_of_memory 60 bash -c "sample out_of_memory 1"
part reports 30 bash -c reports
part "equal to history" 200 "$PYTHON" tests/integration/gpu/compare_with_history.py --timeout 180 --folder "$WORK"
part overhead 120 "$PYTHON" benchmarks/recording_overhead.py -o "$OUT/recording_overhead.json"
part "GPU tests" 280 "$PYTHON" -m pytest --gpu -m gpu -q -p no:cacheprovider --deselect \
  tests/integration/gpu/test_recorded_programs.py::test_recording_equals_pytorch_s_own_history tests
rm -rf "$WORK"

# The table, and of each part what it said itself.
section() { sed -n "/^==== $1: /,/^==== $1: exit /p" "$LOG"; }
{
  section "equal to history" | grep -E '(  equal|DIFFERENT|FAILED|workloads equal)$'
  section overhead | grep -E '^(medians|pair|step| {10,}bare)'
  section "GPU tests" | grep -E '^(FAILED|ERROR) |(passed|failed|errors?) in '
  printf '%s\n' "${TABLE[@]}"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "no nvidia-smi"
} 2>/dev/null | tee "$OUT/card_check.txt"
[[ "${TABLE[*]}" != *"exit "[1-9]* && "${TABLE[*]}" != *"no time"* ]]
