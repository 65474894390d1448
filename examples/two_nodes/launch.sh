#!/bin/sh
# Starts the job of examples/training on one of two nodes. Run it on both, from the top of the repository, with the
# same arguments, and with another LAUNCH for each start of the job:
#
#   examples/two_nodes/launch.sh gpu1:29500 LAUNCH --root=/shared/ckpts/gpt
#
# gpu1 is one of the two, where torchrun's processes meet. torchrun tells each process its rank and how many are on its
# node; --rdzv-id tells ckptd that the processes of both nodes are of one launch. $RANKS is how many there are on each
# node, and $NODES how many nodes there are: 2 unless they are set. $JOB is the job: JOB=examples.training.train_fsdp
# saves FSDP2's shards with ckptd.dcp.
set -eu
meeting_point=$1 launch=$2
shift 2
exec torchrun --nnodes="${NODES:-2}" --nproc-per-node="${RANKS:-2}" \
  --rdzv-backend=c10d --rdzv-endpoint="$meeting_point" --rdzv-id="$launch" \
  -m "${JOB:-examples.training.train}" "$@"
