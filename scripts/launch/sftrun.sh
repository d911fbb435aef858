#!/bin/sh
# Run this on each node, with NODE_RANK 0 on MASTER_ADDR's node. One process per GPU.
#     CONFIG=run.yaml NNODES=2 NODE_RANK=0 MASTER_ADDR=node-a scripts/launch/sftrun.sh [key=value ...]
# Each node restarts its processes up to three times, from the last checkpoint, after a process or a node was lost.
set -eu
exec "${SFTRUN:-sftrun}" train --config "$CONFIG" --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
  --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" --max-restarts 3 "$@"
