"""TorchTNT's checkpoints through ckptd: the same callback, the same names, the same files.

    from ckptd.torchtnt import CheckpointSaver

    saver = CheckpointSaver("/data/ckpts", save_every_n_train_steps=100, keep_last_n_checkpoints=3)
    saver.restore_from_latest("/data/ckpts", unit, train_dataloader=dataloader)
    train(unit, dataloader, callbacks=[saver])

docs/torchtnt.md lists what is different.
"""

from ckptd.torchtnt._app_state import RestoreOptions
from ckptd.torchtnt._saver import CheckpointSaver

__all__ = ["CheckpointSaver", "RestoreOptions"]
