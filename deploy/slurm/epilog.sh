#!/bin/bash
# Epilog: waits, at most a minute, until the job's user has no save in flight, so that the node may be rebooted or
# given away. What all ranks had sealed is published without them. Never fails: an epilog that fails drains the node. Use
# it in slurm.conf: Epilog=/etc/slurm/epilog.d/ckptd.sh
set -uo pipefail

# As the job's user, who sees only the own runs.
as_user=()
[ -z "${SLURM_JOB_USER:-}" ] || as_user=(runuser --user "$SLURM_JOB_USER" --)
"${as_user[@]}" ckptctl --timeout="${CKPTD_EPILOG_SECONDS:-60}" watch --until-idle >/dev/null ||
    echo "ckptd on $(hostname): saves of ${SLURM_JOB_USER:-all users} failed or did not end; see ckptctl history" >&2
exit 0
