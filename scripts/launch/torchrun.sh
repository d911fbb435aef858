#!/bin/sh
# Run this on each node, with NODE_RANK 0 on MASTER_ADDR's node. NPROC: processes per node, by default one per GPU.
#     CONFIG=run.yaml NNODES=2 NODE_RANK=0 MASTER_ADDR=node-a scripts/launch/torchrun.sh [key=value ...]
set -eu
exec torchrun --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "${NPROC:-gpu}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" --no-python \
  "${SFTRUN:-sftrun}" train --config "$CONFIG" "$@"
