#!/bin/sh
# Runs a test with the Python of the reference environment; in a copy of a process that has imported the packages, if SFTRUN_REFERENCE_SOCKET
# names one (reference_server.py). Without that environment the test counts as skipped (exit code 77).
#
#   with_reference.sh PYTHON SCRIPT …
if [ ! -x "$1" ]; then
  echo "SKIPPED: $1 does not exist; \`scripts/bootstrap.sh --reference\` installs it"
  exit 77
fi
# bitsandbytes compiles its CPU functions for half a minute where a test needs them for a moment.
export TORCHDYNAMO_DISABLE=1
if [ -n "$SFTRUN_REFERENCE_SOCKET" ]; then
  exec python3 "$(dirname "$0")/reference_server.py" run "$SFTRUN_REFERENCE_SOCKET" "$@"
fi
exec "$@"
