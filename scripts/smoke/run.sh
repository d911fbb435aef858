#!/usr/bin/env bash
# Called by `make smoke` when the program is built: trains a tiny random model on the toy set with two processes, and checks what came out.
#   SEED=7 make smoke                  another random model, another order of the data
#   scripts/smoke/run.sh FOLDER        model and run are written to FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sftrun=${SFTRUN:-${BUILD:-build}/bin/sftrun}
seed=${SEED:-1}
model=.cache/smoke/model
run=runs/smoke
[ $# = 0 ] || { model=$1/model run=$1/run; }

started=$SECONDS
scripts/smoke/model.py --output "$model" --seed "$seed"

# Two GPUs where there are two, else two processes on the CPU.
device=cpu
if [ "$("$sftrun" gpu-info | sed -n 's/^Number of GPUs: *//p')" -ge 2 ]; then device=cuda; fi

rm -rf "$run"
"$sftrun" train --config scripts/smoke/run.yaml --device "$device" --nproc-per-node 2 \
  model.name="$model" data.seed="$seed" output.dir="$run"
scripts/smoke/check.py --sftrun "$sftrun" --run "$run"
echo "  $((SECONDS - started)) s; open $run/report.html: curves, memory and settings of this run"
