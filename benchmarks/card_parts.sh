# The frame of the scripts that need a real GPU, sourced by each from the checkout's root: a log, parts with a limit of
# time each, the installed checkout, sample programs recorded, and a table at the end.
#
#   CARD_LOG=NAME CARD_SECONDS=N . benchmarks/card_parts.sh
#
# OUT, WHEELS, PYTHON and SKIP_INSTALL are what the sourcing script says of them.
OUT=$(realpath -m "${OUT:-card_check_results}")
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d)
LOG=$OUT/$CARD_LOG.log
DEADLINE=$((SECONDS + CARD_SECONDS))
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

# sample TRACE PROGRAM EXIT [OPTIONS…]: records a sample program into $OUT and reports on it. It runs from a folder whose
# name says nothing about the machine, as the trace keeps the paths of its frames.
sample() {
  local trace=$1 program=$2 expected=$3 folder=/tmp/training status
  shift 3
  mkdir -p "$folder"
  cp "sample_traces/scripts/$program.py" "$folder"
  (cd "$folder" && gpumem run -f -o "$OUT/$trace.gpumem" "$@" "$program.py")
  status=$?
  gpumem summary "$OUT/$trace.gpumem" || return
  ls -l "$OUT/$trace.gpumem"
  [ "$status" -eq "$expected" ]
}

# section NAME: what a part wrote into the log
section() { sed -n "/^==== $1: /,/^==== $1: exit /p" "$LOG"; }

# conclude: the table behind what stands on its input, and whether every part went well
conclude() {
  rm -rf "$WORK"
  {
    cat
    printf '%s\n' "${TABLE[@]}"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "no nvidia-smi"
  } 2>/dev/null | tee "$OUT/$CARD_LOG.txt"
  [[ "${TABLE[*]}" != *"exit "[1-9]* && "${TABLE[*]}" != *"no time"* ]]
}

export -f install sample
export PYTHON OUT WORK WHEELS=${WHEELS:-} SKIP_INSTALL=${SKIP_INSTALL:-}
PATH=$(dirname "$(command -v "$PYTHON")"):$PATH
export PATH PYTHONUNBUFFERED=1
