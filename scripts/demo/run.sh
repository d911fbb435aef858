#!/usr/bin/env bash
# Called by `make demo` when the program is built: fetches model and data, fine-tunes, shows before and after.
#   SEED=7 make demo        another seed for adapter, dropout and order of the data
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sftrun=${BUILD:-build}/bin/sftrun
seed=${SEED:-1}
run=runs/demo
[ "$seed" = 1 ] || run=runs/demo-seed-$seed

scripts/demo/prepare.py

# One process a GPU where there are GPUs, two on the CPU.
processes=2
if [ "$("$sftrun" gpu-info | sed -n 's/^Number of GPUs: *//p')" != 0 ]; then processes=auto; fi

rm -rf "$run"
started=$SECONDS
"$sftrun" train --config configs/demo.yaml --nproc-per-node "$processes" \
  train.seed="$seed" data.seed="$seed" output.dir="$run"
scripts/demo/show.py --sftrun "$sftrun" --run "$run" --train-seconds $((SECONDS - started))
"$sftrun" report "$run" >/dev/null  # again, with the answers
echo "  open $run/report.html: curves, memory, answers and settings of this run"
