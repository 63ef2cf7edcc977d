#!/usr/bin/env bash
# For a machine on which a command may not run for as long as run_gpu.sh: starts it once, then waits, call by call.
#
#     benchmarks/device/background.sh NAME SECONDS COMMAND...
#
# The first call of a NAME starts the command apart from the caller. Each call ends after SECONDS, or when the command has, says
# how far it is, and copies what it has written to its own $OUT into $OUT/NAME of the call. The exit status is that of the
# command; 75 while it goes on.
set -uo pipefail
name=$1 limit=$2
shift 2
folder=/tmp/background-$name
given=${OUT:-runs/device}
mkdir -p "$given/$name"
if mkdir "$folder" 2> /dev/null; then
    mkdir "$folder/out"
    OUT=$folder/out setsid bash -c '"$@" > "$0/log" 2>&1; echo $? > "$0/ended"' "$folder" "$@" < /dev/null > /dev/null 2>&1 &
fi
while [ ! -s "$folder/ended" ] && [ "$SECONDS" -lt "$limit" ]; do sleep 0.5; done
tail -n 20 "$folder/log"
cp -r "$folder/out/." "$given/$name/"
cp "$folder/log" "$given/$name.log"
if [ ! -s "$folder/ended" ]; then
    echo "$name: goes on"
    exit 75
fi
echo "$name: exit $(cat "$folder/ended")"
exit "$(cat "$folder/ended")"
