#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit or a preemption this script gets SIGUSR1.
#SBATCH --signal=B:USR1@120
#
# A job that resumes from its newest checkpoint after a failure, a preemption and its time limit. Under more than one node,
# see docs/slurm.md.
set -uo pipefail

export CKPTD_ENDPOINT=${CKPTD_ENDPOINT:-unix:/run/ckptd/ckptd.sock}

# The trainer is asked to save and to end (SIGUSR1), and the job is queued again.
requeue() {
    echo "the job's time is nearly over: asking the trainer to save"
    kill -USR1 "$trainer" 2>/dev/null
    wait "$trainer"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap requeue USR1

# In the background, so that the trap runs at once.
srun "${@:-./train.py}" &
trainer=$!
wait "$trainer"
