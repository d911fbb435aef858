#!/usr/bin/env bash
# Continuous integration, on any machine with git, make and python3: set up, build, train a tiny model on the toy set, run every test.
#   scripts/ci.sh            what .github/workflows/ci.yml runs
#   scripts/ci.sh smoke      without the tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make smoke
[ "${1:-}" = smoke ] || make test
