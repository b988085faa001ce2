#!/bin/bash
# `gpumem diff` on a real GPU, in one call of less than two minutes: a training program recorded before and after real
# changes (batch size, a tensor kept, another optimizer, lines added above, nothing at all), each compared and checked.
# Prints a short table last.
#
#   OUT=results benchmarks/card_diff.sh       the whole log is card_diff.log
#   WHEELS=folder …                           installs the wheels in it first, for a machine without network
#   PYTHON=…                                  another interpreter than python3
#   SKIP_INSTALL=1 …                          gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_diff CARD_SECONDS=200
. benchmarks/card_parts.sh

pair() {
  gpumem diff /tmp/training/before/train.gpumem /tmp/training/both_of_these/train.gpumem &&
    gpumem diff /tmp/training/before/train.gpumem /tmp/training/batch_doubled/train.gpumem --by stack --top 3 &&
    gpumem diff /tmp/training/before/train.gpumem /tmp/training/SGD_to_AdamW/train.gpumem &&
    gpumem diff /tmp/training/before/train.gpumem --at start --at end
}
export -f pair

part install 120 bash -c install
part "diff of changes" 120 "$PYTHON" benchmarks/diff_changes.py --folder /tmp/training
part reports 20 bash -c pair

# What was said of each change, then the table.
section "diff of changes" | grep -vE '^====' | conclude
