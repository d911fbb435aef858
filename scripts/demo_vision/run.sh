#!/usr/bin/env bash
# Called by `make demo-vision` when the program is built: makes pictures and a model, trains it, shows answers before and after.
#   SEED=7 make demo-vision        other pictures, other initial weights, another order of the data
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sftrun=${BUILD:-build}/bin/sftrun
seed=${SEED:-1}
made=.cache/demo-vision
run=runs/demo-vision
[ "$seed" = 1 ] || { made=$made/seed-$seed run=$run-seed-$seed; }

started=$SECONDS
scripts/demo_vision/pictures.py --output "$made/pictures" --seed "$seed"
scripts/demo_vision/model.py --output "$made/model" --seed "$seed"

# One process: steps are so small that the threads of one wait less than two processes for each other.
rm -rf "$run"
training=$SECONDS
"$sftrun" train --config scripts/demo_vision/run.yaml --nproc-per-node 1 model.name="$made/model" data.train="$made/pictures/train.jsonl" \
  data.val="$made/pictures/heldout.jsonl" data.seed="$seed" output.dir="$run"
training=$((SECONDS - training))
scripts/demo_vision/show.py --sftrun "$sftrun" --model "$made/model" --pictures "$made/pictures" --run "$run" || status=$?
echo "  training took $training s, the whole demo $((SECONDS - started)) s"
exit "${status:-0}"
