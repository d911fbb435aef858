#!/usr/bin/env bash
# Runs a command that trains while TensorBoard shows its run directory.
#   scripts/with_tensorboard.sh RUN_DIRECTORY COMMAND …      # TENSORBOARD_PORT=6006
# TensorBoard ends with the command, whose exit code is returned. Without TensorBoard nothing is started (exit code 2).
set -eu -o pipefail

run_directory=$1
shift
port=${TENSORBOARD_PORT:-6006}

if ! command -v tensorboard >/dev/null; then
  echo "error: tensorboard was not found" >&2
  echo "  fix: install it (pip install tensorboard), or train without it: the target without -tb" >&2
  exit 2
fi
tensorboard --logdir "$run_directory" --port "$port" >/dev/null 2>&1 &
tensorboard=$!
trap 'kill "$tensorboard" 2>/dev/null || true' EXIT
echo "TensorBoard: http://localhost:$port ($run_directory)"
status=0
"$@" || status=$?
exit "$status"
