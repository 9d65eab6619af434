#!/usr/bin/env bash
# cancel.sh ID...: cancel jobs.
exec qdel "$@"
