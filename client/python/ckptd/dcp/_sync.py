"""Saving as ``dcp.save`` does, by the plan of an earlier save where there is one."""

import os
from typing import Any, Optional

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from ckptd._adapters import root_paths
from ckptd._paths import open_regular
from ckptd.dcp import _names, _repeated
from ckptd.dcp._failure import with_cause_first
from ckptd.dcp._metadata import load_metadata
from ckptd.dcp._process import Place, place_of, process


def save(state_dict: Any, writer: Any, checkpoint_id: Any = None, **arguments: Any) -> Metadata:
    """Saves and returns the metadata on every rank, as dcp.save() does.

    Args:
        writer: a Writer that waits for the commit: the ranks read the metadata from the checkpoint.
        arguments: the others of dcp.save().
    """
    if checkpoint_id:
        writer.reset(checkpoint_id)
    metadata = save_state(state_dict, writer, **arguments)
    return metadata if metadata is not None else read_metadata(writer.checkpoint_id)


def save_state(
    state_dict: Any,
    writer: Any,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Optional[Metadata]:
    """Saves, and waits for what the writer waits for.

    Only the coordinator is sure to return the metadata; other ranks may return None.

    Raises:
        CheckpointException: the save has failed; its text begins with the cause.
    """
    try:
        if writer.repeats_plans and planner is None and use_collectives:
            return _repeated.save(state_dict, writer, process_group, no_dist)
        metadata: Metadata = _names.stock_save(
            state_dict,
            storage_writer=writer,
            planner=planner,
            process_group=process_group,
            no_dist=no_dist,
            use_collectives=use_collectives,
        )
        return metadata
    except CheckpointException as error:
        raise with_cause_first(error) from error.__cause__


def read_metadata(path: str) -> Metadata:
    """Returns the metadata of a committed checkpoint; that of none if retention has removed it since."""
    place = place_of(path)
    if not root_paths.of(place.root).is_directory:
        return _read_from_bucket(place)
    try:
        with open(os.path.join(path, _names.METADATA_FILE), "rb", opener=open_regular) as file:
            return load_metadata(file, str(file.name))
    except FileNotFoundError:
        return Metadata({})


def _read_from_bucket(place: Place) -> Metadata:
    checkpoint = process.open(place)
    if checkpoint is None:
        return Metadata({})
    with checkpoint:
        return load_metadata(checkpoint.read(_names.METADATA_FILE), f"{_names.METADATA_FILE} of {place.path}")
