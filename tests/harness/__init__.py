"""What the tests that drive real programs share: daemons, trainer processes, ckptctl, and waiting with a deadline."""

from harness.handoff_connection import HandoffConnection
from harness.killer import Killer
from harness.local_daemon import Daemon, tags
from harness.programs import DaemonProgram, ckptctl, find_program, start_ckptctl
from harness.ranks import LaunchedRanks, Ranks
from harness.trainer import TRAINER_PROGRAM, Trainer, TrainerError, together, together_failing
from harness.waiting import TIMEOUT, alive, stop, until, until_equal
from harness.workplace import TESTS, closing, module_path, temporary_folder

__all__ = [
    "TESTS",
    "TIMEOUT",
    "TRAINER_PROGRAM",
    "Daemon",
    "DaemonProgram",
    "HandoffConnection",
    "Killer",
    "LaunchedRanks",
    "Ranks",
    "Trainer",
    "TrainerError",
    "alive",
    "ckptctl",
    "closing",
    "find_program",
    "module_path",
    "start_ckptctl",
    "stop",
    "tags",
    "temporary_folder",
    "together",
    "together_failing",
    "until",
    "until_equal",
]
