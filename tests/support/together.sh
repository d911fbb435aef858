#!/bin/sh
# Cases of a GoogleTest binary in a few processes, each still a ctest case: LibTorch takes a third of a second of a core to begin
# and to end, and there are hundreds of them.
#
#   together.sh FOLDER run BINARY …                    runs a shard (GTEST_SHARD_INDEX) of all cases; FOLDER keeps what it says
#   together.sh FOLDER ended                           says how the shards ended, and fails if one crashed
#   together.sh FOLDER BINARY --gtest_filter=CASE …    says again what was said of CASE, and fails where it did not pass
#   together.sh FOLDER BINARY --gtest_list_tests …     lists them
set -u
folder=$1
shift

if [ "$1" = run ]; then
  shift
  log=$folder/$GTEST_SHARD_INDEX.log
  mkdir -p "$folder"
  echo unfinished >"$folder/$GTEST_SHARD_INDEX.status"
  "$@" >"$log" 2>&1
  # It passes: each case fails by itself, so that a crash is told by the case in which it happened.
  echo $? >"$folder/$GTEST_SHARD_INDEX.status"
  exit 0
fi

if [ "$1" = ended ]; then
  failed=0
  for file in "$folder"/*.status; do
    log=${file%.status}.log
    status=$(cat "$file")
    # A case that failed says so itself; of a process that crashed, or leaked at its end, nothing else does.
    if [ "$status" = 0 ] || { [ "$status" = 1 ] && grep -q '^\[  FAILED  \] ' "$log"; }; then continue; fi
    failed=1
    echo "error: ${file##*/} is $status; the last case was $(grep '^\[ RUN      \] ' "$log" | tail -n 1). Its end:"
    tail -n 40 "$log"
  done
  exit $failed
fi

case $2 in
  --gtest_filter=*) ;;
  *) exec "$@" ;;
esac
awk -v name="${2#--gtest_filter=}" '
  $0 == "[ RUN      ] " name { is_here = 1 }
  is_here { print }
  is_here && (index($0, "[       OK ] " name " (") || index($0, "[  SKIPPED ] " name " (")) { has_passed = 1 }
  is_here && /(\[       OK \]|\[  SKIPPED \]|\[  FAILED  \]) / { exit }
  END {
    if (!is_here) print "error: " name " was not run"
    exit !has_passed
  }' "$folder"/*.log
