#!/usr/bin/env bash
# status.sh ID: print running, success or failed.  A server that does not answer leaves a job running.
set -uo pipefail
answer=$(qstat -x -f "$1" 2>&1)
field() { sed -n "s/^ *$1 = //p" <<<"$answer"; }
if [[ $answer == *"Unknown Job"* ]]; then
  echo failed
elif [[ $(field job_state) != F ]]; then
  echo running
elif [[ $(field Exit_status) == 0 ]]; then
  echo success
else
  echo failed
fi
