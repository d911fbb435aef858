#!/bin/sh
# Run this on each node, with NODE_RANK 0 on MASTER_ADDR's node. One process per GPU. On one machine CONFIG alone is enough.
#     CONFIG=run.yaml NNODES=2 NODE_RANK=0 MASTER_ADDR=node-a scripts/launch/sftrun.sh [key=value ...]
# Each node restarts its processes up to three times, from the last checkpoint, after a process or a node was lost.
set -eu
: "${CONFIG:?names the YAML of the run, as in CONFIG=run.yaml}"
if [ "${NNODES:-1}" = 1 ]; then exec "${SFTRUN:-sftrun}" train --config "$CONFIG" --max-restarts 3 "$@"; fi
: "${MASTER_ADDR:?names the machine with NODE_RANK 0, as in MASTER_ADDR=node-a}"
exec "${SFTRUN:-sftrun}" train --config "$CONFIG" --nnodes "$NNODES" --node-rank "${NODE_RANK:-0}" \
  --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" --max-restarts 3 "$@"
