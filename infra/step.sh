#!/bin/sh
# step.sh TEXT COMMAND...: run a command that is silent for long; show TEXT and the seconds so far.
# On a terminal the seconds count on; anywhere else a line is printed every 15 seconds.
text=$1
shift
start=$(date +%s)
"$@" &
child=$!
trap 'kill "$child" 2>/dev/null; echo >&2; exit 130' INT TERM
every=15
[ -t 2 ] && every=1
waited=0
[ -t 2 ] || printf '  %s\n' "$text" >&2
while kill -0 "$child" 2>/dev/null; do
  [ -t 2 ] && printf '\r  %s ... %d s ' "$text" $(($(date +%s) - start)) >&2
  sleep 1
  waited=$((waited + 1))
  [ ! -t 2 ] && [ $((waited % every)) -eq 0 ] && printf '  %s ... %d s\n' "$text" $(($(date +%s) - start)) >&2
done
wait "$child"
code=$?
took=$(($(date +%s) - start))
[ -t 2 ] && printf '\r' >&2
if [ "$code" -eq 0 ]; then
  printf '  %s: done after %d s\n' "$text" "$took" >&2
else
  printf '  %s: failed after %d s (exit code %d)\n' "$text" "$took" "$code" >&2
fi
exit "$code"
