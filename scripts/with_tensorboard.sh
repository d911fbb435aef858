#!/usr/bin/env bash
# Runs a command that trains while TensorBoard shows its run directory.
#   scripts/with_tensorboard.sh RUN_DIRECTORY COMMAND …      # TENSORBOARD_PORT=6006, or the next one that is free
# The command starts when TensorBoard serves. TensorBoard ends with the command, whose exit code is returned. If TensorBoard is not
# installed or does not start, a warning says so, and the command runs without it.
set -eu -o pipefail

run_directory=$1
shift
max_ports=50
start_seconds=60  # TensorBoard takes 3 s to start; on a busy machine much longer

warn() { printf 'warning: %s\n' "$@" >&2; }
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() {  # free_port FIRST LAST: prints the first of these ports that nothing listens on
  local port
  for ((port = $1; port <= $2 && port < 65536; ++port)); do
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

log=$(mktemp "${TMPDIR:-/tmp}/tensorboard-XXXXXX.log")
tensorboard=
watcher=
end_tensorboard() {
  # shellcheck disable=SC2086  # none, one or two processes
  kill $watcher $tensorboard 2>/dev/null || true
  rm -f "$log"
}
trap end_tensorboard EXIT
last_lines() { tail -n 5 "$log" | sed 's/^/  /' >&2; }

start_tensorboard() {  # start_tensorboard PORT: true as soon as it serves; false if it has ended
  # In a session of its own: Ctrl-C asks the training to write a checkpoint, and TensorBoard continues until then.
  setsid "$program" --logdir "$run_directory" --port "$1" >"$log" 2>&1 &
  tensorboard=$!
  local tenth
  for ((tenth = 0; tenth < start_seconds * 10; ++tenth)); do
    ! grep -q '^TensorBoard .* at http' "$log" || return 0
    kill -0 "$tensorboard" 2>/dev/null || { tensorboard= && return 1; }
    sleep 0.1
  done
  warn "TensorBoard does not serve after $start_seconds s; training starts, and TensorBoard when it can"
}

# A port that nothing listens on may still be refused: another program had it, or took it since. Then the next one is tried.
wanted=${TENSORBOARD_PORT:-6006}
last=$((wanted + max_ports - 1))
port=$((wanted - 1))
while port=$(free_port $((port + 1)) "$last") && ! start_tensorboard "$port"; do
  grep -q 'already in use' "$log" || break
done
if [ -z "$tensorboard" ] && [ -n "$port" ]; then
  warn "TensorBoard did not start; training without it. Its last lines:"
  last_lines
elif [ -z "$tensorboard" ]; then
  warn "none of the $max_ports ports from $wanted on is free; training without TensorBoard (fix: set TENSORBOARD_PORT)"
else
  [ "$port" = "$wanted" ] || echo "port $wanted is taken; TensorBoard gets $port"
  echo "TensorBoard: http://localhost:$port ($run_directory)"
  while kill -0 "$tensorboard" 2>/dev/null; do sleep 0.5; done && warn "TensorBoard has ended; training continues. Its last lines:" && last_lines &
  watcher=$!
fi
status=0
"$@" || status=$?
exit "$status"
