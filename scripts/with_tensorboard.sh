#!/usr/bin/env bash
# Runs a command that trains while TensorBoard shows its run directory.
#   scripts/with_tensorboard.sh RUN_DIRECTORY COMMAND …      # TENSORBOARD_PORT=6006, or the next one that is free
# TensorBoard ends with the command, whose exit code is returned. If TensorBoard is not installed or does not start, a warning says
# so, and the command runs without it.
set -eu -o pipefail

run_directory=$1
shift
most_ports=50

warn() { printf 'warning: %s\n' "$@" >&2; }
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() {  # free_port FIRST: prints the first port from there on that nothing listens on
  local port
  for ((port = $1; port < $1 + most_ports && port < 65536; ++port)); do
    is_taken "$port" || { echo "$port" && return; }
  done
  return 1
}

program=$(command -v tensorboard || true)
for environment in .venv .venv-ref; do  # of this repository
  [ -n "$program" ] || [ ! -x "$environment/bin/tensorboard" ] || program=$environment/bin/tensorboard
done
if [ -z "$program" ]; then
  warn "tensorboard was not found; training without it (fix: pip install tensorboard)"
  exec "$@"
fi
wanted=${TENSORBOARD_PORT:-6006}
if ! port=$(free_port "$wanted"); then
  warn "none of the $most_ports ports from $wanted on is free; training without TensorBoard (fix: set TENSORBOARD_PORT)"
  exec "$@"
fi
[ "$port" = "$wanted" ] || echo "port $wanted is taken; TensorBoard gets $port"

log=$(mktemp "${TMPDIR:-/tmp}/tensorboard-XXXXXX.log")
# In a session of its own: Ctrl-C asks the training to write a checkpoint, and TensorBoard goes on until then.
setsid "$program" --logdir "$run_directory" --port "$port" >"$log" 2>&1 &
tensorboard=$!
watch() {
  while kill -0 "$tensorboard" 2>/dev/null; do sleep 0.5; done
  warn "TensorBoard has ended; training goes on. Its last lines:"
  tail -n 5 "$log" | sed 's/^/  /' >&2
}
watch &
watcher=$!
end_tensorboard() {
  kill "$watcher" "$tensorboard" 2>/dev/null || true
  rm -f "$log"
}
trap end_tensorboard EXIT
echo "TensorBoard: http://localhost:$port ($run_directory)"
status=0
"$@" || status=$?
exit "$status"
