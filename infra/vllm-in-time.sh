#!/usr/bin/env bash
# vllm-in-time.sh SECONDS: install vLLM for the CPU and run its most telling tests, if so many seconds are enough for it.
# Where they are not, it says so and exits with 0: CI has an hour, and a slow machine needs it for the other tests.
set -uo pipefail

LEAST=${RAILBUS_VLLM_LEAST_S:-960} # both on two cores, with half as much again: 4 minutes of installation, 6 of tests
TESTS=${RAILBUS_VLLM_TESTS_S:-420}
RESERVE=60 # for what comes after

left=$1
end=$((SECONDS + left - RESERVE))
skip() {
  echo "vLLM's tests are skipped: $1. Run them with: make test-vllm" >&2
  exit 0
}

if ((left < LEAST)); then skip "$((left / 60)) minutes are left, and they may take $((LEAST / 60))"; fi
timeout --kill-after=10 $((end - SECONDS - TESTS)) make vllm
status=$?
if ((status == 124 || status == 137)); then skip "the installation took too long"; fi
if ((status)); then exit $status; fi
timeout --kill-after=10 $((end - SECONDS)) make test-vllm-core
status=$?
if ((status == 124 || status == 137)); then skip "they did not end in time"; fi
exit $status
