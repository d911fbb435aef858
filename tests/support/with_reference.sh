#!/bin/sh
# Runs a test with the Python of the reference environment. Without that environment the test counts as skipped (exit code 77).
#
#   with_reference.sh PYTHON SCRIPT …
if [ ! -x "$1" ]; then
  echo "SKIPPED: $1 does not exist; \`scripts/bootstrap.sh --reference\` installs it"
  exit 77
fi
# bitsandbytes compiles its CPU functions for half a minute where a test needs them for a moment.
export TORCHDYNAMO_DISABLE=1
exec "$@"
