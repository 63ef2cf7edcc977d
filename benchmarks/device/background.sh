#!/usr/bin/env bash
# For a machine on which a command may not run for as long as run_gpu.sh: starts it once, then waits, call by call.
#
#     benchmarks/device/background.sh NAME SECONDS COMMAND...
#
# The first call of a NAME starts the command apart from the caller. Each call ends after SECONDS, or when the command has, says
# how far it is, and copies what it has written to its own $OUT, /tmp/NAME/out, into the $OUT of the call.
set -uo pipefail
name=$1 seconds=$2
shift 2
folder=/tmp/$name
given=${OUT:-runs/device}
mkdir -p "$given"
if mkdir "$folder" 2> /dev/null; then
    mkdir "$folder/out"
    OUT=$folder/out setsid bash -c '"$@" > "$0/log" 2>&1; echo $? > "$0/ended"' "$folder" "$@" < /dev/null > /dev/null 2>&1 &
fi
while [ ! -e "$folder/ended" ] && [ "$SECONDS" -lt "$seconds" ]; do sleep 0.5; done
tail -n 20 "$folder/log"
cp -r "$folder/out" "$given/$name"
cp "$folder/log" "$given/$name.log"
if [ -e "$folder/ended" ]; then echo "$name: exit $(cat "$folder/ended")"; else echo "$name: goes on"; fi
