#!/bin/sh
# Starts the job of examples/training on one of two nodes. Run it on both, from the top of the repository, with the
# same arguments but for the first, and with another LAUNCH for each start of the job:
#
#   examples/two_nodes/launch.sh 0 gpu1 29500 LAUNCH --root=/shared/ckpts/gpt   # on gpu1
#   examples/two_nodes/launch.sh 1 gpu1 29500 LAUNCH --root=/shared/ckpts/gpt   # on gpu2
#
# torchrun tells each process its rank and how many are on its node; --rdzv-id tells ckptd that the processes of both
# nodes are of one launch. $RANKS is how many there are on each node: 2 unless it is set.
set -eu
node=$1 head=$2 port=$3 launch=$4
shift 4
exec torchrun --nnodes=2 --node-rank="$node" --nproc-per-node="${RANKS:-2}" \
  --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$launch" \
  -m examples.training.train "$@"
