#!/bin/bash
# Prolog: a node whose ckptd does not answer, or is ending, gets no job (a prolog that fails drains the node, and the job
# is queued again). Use it in slurm.conf: Prolog=/etc/slurm/prolog.d/ckptd.sh
set -uo pipefail

if ! said=$(ckptctl --timeout=20 status 2>&1); then
    echo "ckptd on $(hostname) does not answer: $said" >&2
    exit 1
fi
# The first line has the state: SERVING, DRAINING, DRAINED, or DEGRADED, which may be due to another job's disk alone.
if [[ "${said%%$'\n'*}" == *DRAIN[IE]* ]]; then
    echo "ckptd on $(hostname) is ending or drained: ${said%%$'\n'*}" >&2
    exit 1
fi
