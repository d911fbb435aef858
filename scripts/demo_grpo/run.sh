#!/usr/bin/env bash
# Called by `make demo-grpo` when the program is built: fetches the demo's model, makes prompts, trains on rewards, shows answers before and after.
#   SEED=7 make demo-grpo        other held-out sums, another adapter, other answers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sftrun=${BUILD:-build}/bin/sftrun
seed=${SEED:-1}
made=.cache/demo-grpo
run=runs/demo-grpo
[ "$seed" = 1 ] || { made=$made/seed-$seed run=$run-seed-$seed; }

scripts/demo/prepare.py --model-only
scripts/demo_grpo/prompts.py --output "$made" --seed "$seed"

# One process a GPU where there are GPUs, two on the CPU.
processes=2
if [ "$("$sftrun" gpu-info | sed -n 's/^Number of GPUs: *//p')" != 0 ]; then processes=auto; fi

rm -rf "$run"
started=$SECONDS
"$sftrun" train --config scripts/demo_grpo/run.yaml --nproc-per-node "$processes" data.train="$made/train.jsonl" data.val="$made/heldout.jsonl" \
  train.seed="$seed" data.seed="$seed" output.dir="$run"
scripts/demo_grpo/show.py --run "$run" --train-seconds $((SECONDS - started))
echo "  open $run/report.html: curves and settings of this run; $run/rollouts has the answers of its steps"
