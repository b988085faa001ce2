#!/bin/bash
# gpumem oom on a real GPU, in one call of less than four minutes: programs that run out of memory in eleven ways, whose
# errors, as the installed PyTorch and CuPy print them, must get the right verdicts; the heap at the error of a recording.
# Prints a short table last.
#
#   OUT=results benchmarks/card_oom.sh      the whole log is card_oom.log; the errors stay in $OUT as oom_WAY.log
#   WHEELS=folder …                         installs the wheels in it first, for a machine without network
#   PYTHON=…                                another interpreter than python3
#   SKIP_INSTALL=1 …                        gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_oom CARD_SECONDS=500
. benchmarks/card_parts.sh

mkdir -p /tmp/training
cp benchmarks/card_oom/*.py /tmp/training

texts() {
  for way in capacity fragmentation limit pools outside; do gpumem oom "$OUT/oom_$way.log" || return; done
}
# recorded WAY: the same error out of a recording
recorded() {
  (cd /tmp/training && gpumem run -f -o "$OUT/$1.gpumem" run_out.py "$1") && return 1
  gpumem summary "$OUT/$1.gpumem" && gpumem snapshot "$OUT/$1.gpumem" --at oom
}
export -f texts recorded

part install 120 bash -c install
part errors 240 "$PYTHON" /tmp/training/check.py "$OUT"
part texts 30 bash -c texts
part "recorded fragmentation" 60 bash -c "recorded fragmentation"
part "recorded pools" 60 bash -c "recorded pools"

section errors | grep -v '^====' | conclude
