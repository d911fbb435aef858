#!/bin/sh
# Run this on each node, with NODE_RANK 0 on MASTER_ADDR's node. WORLD: processes on all nodes together.
#     CONFIG=run.yaml WORLD=16 NNODES=2 NODE_RANK=0 MASTER_ADDR=node-a scripts/launch/accelerate.sh [key=value ...]
set -eu
exec accelerate launch --multi_gpu --num_processes "$WORLD" --num_machines "${NNODES:-1}" --machine_rank "${NODE_RANK:-0}" \
  --main_process_ip "${MASTER_ADDR:-127.0.0.1}" --main_process_port "${MASTER_PORT:-29500}" --no_python \
  "${SFTRUN:-sftrun}" train --config "$CONFIG" "$@"
