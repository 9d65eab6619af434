#!/usr/bin/env bash
# submit.sh MINUTES MEMORY_MB THREADS GPUS SCRIPT: submit SCRIPT with one node to itself; print the job's id.
set -euo pipefail
mkdir -p logs/scheduler
select="select=1:ncpus=$3:mem=$2mb"
if [ "$4" -gt 0 ]; then select+=":ngpus=$4"; fi
exec qsub -V -N spectile -j oe -o logs/scheduler/ -l "$select" -l place=excl -l "walltime=$((60 * $1))" "$5"
