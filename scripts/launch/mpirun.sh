#!/bin/sh
# One node, NPROC processes. Over several nodes add `--hostfile FILE -x MASTER_ADDR=HOST`, HOST being the node of rank 0.
#     CONFIG=run.yaml NPROC=8 scripts/launch/mpirun.sh [key=value ...]
set -eu
exec mpirun --bind-to none -np "$NPROC" "${SFTRUN:-sftrun}" train --config "$CONFIG" "$@"
