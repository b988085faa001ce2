#!/bin/bash
# gpumem explain on a real GPU, in one call of less than two minutes: a program with one of everything, recorded twice,
# whose ledger must close at every mark and say the same both times; two processes on one card; a child that outlives its
# parent. Prints a short table last.
#
#   OUT=results benchmarks/card_explain.sh      the whole log is card_explain.log; the traces stay in $OUT
#   WHEELS=folder …                             installs the wheels in it first, for a machine without network
#   PYTHON=…                                    another interpreter than python3
#   SKIP_INSTALL=1 …                            gpumem is installed as it shall be
set -u
cd "$(dirname "$0")/.."
CARD_LOG=card_explain CARD_SECONDS=230
. benchmarks/card_parts.sh

mkdir -p /tmp/training
cp benchmarks/card_explain/*.py /tmp/training

# mixed NAME: the program with one of everything, recorded into $OUT
mixed() { cd /tmp/training && gpumem run -f -o "$OUT/$1.gpumem" mixed_program.py; }

texts() {
  gpumem explain "$OUT/mixed_first.gpumem" --at mark:end && gpumem explain "$OUT/mixed_first.gpumem" && gpumem explain
}
export -f mixed texts
check=(timeout -k 5 60 "$PYTHON" /tmp/training/check.py)

part install 120 bash -c install
part "mixed, first" 60 bash -c "mixed mixed_first"
part "mixed, second" 40 bash -c "mixed mixed_second"
part ledgers 60 "${check[@]}" ledgers "$OUT/mixed_first.gpumem" "$OUT/mixed_second.gpumem"
part neighbours 60 "${check[@]}" neighbours "$OUT"
part orphan 60 "${check[@]}" orphan "$OUT"
part texts 20 bash -c texts

# Of each part what it said itself, then the table.
for name in ledgers neighbours orphan; do
  section "$name" | grep -v '^===='
done | conclude
