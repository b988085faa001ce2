#!/bin/bash
# gpumem on two real GPUs, in one call of less than four minutes: one process that uses both, on PyTorch's allocator and on
# ours, expandable segments or not; two ranks over NCCL recorded together; the page of the ranks' summary. Prints a short table last.
#
#   OUT=results benchmarks/card_two.sh      the whole log is card_two.log; the traces stay in $OUT
#   WHEELS=folder …                         installs the wheels in it first, for a machine without network
#   PYTHON=…                                another interpreter than python3
#   SKIP_INSTALL=1 …                        gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_two CARD_SECONDS=230
. benchmarks/card_parts.sh

mkdir -p /tmp/training
cp benchmarks/card_two/*.py /tmp/training
check=("$PYTHON" /tmp/training/check.py)

texts() {
  gpumem summary "$OUT/ranks" && gpumem explain "$OUT/ranks" && gpumem diff "$OUT/ranks" --at start --at peak && gpumem explain "$OUT/two_devices_native.gpumem" --at mark:emptied && gpumem explain
}
export -f texts

part install 100 bash -c install
part devices 150 "${check[@]}" devices "$OUT"
part ranks 90 "${check[@]}" ranks "$OUT"
part texts 30 bash -c texts

# Of each part what it said itself, then the table.
for name in devices ranks; do
  section "$name" | grep -v '^===='
done | conclude
