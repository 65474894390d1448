"""Universal checkpoints, made when DeepSpeed is to load one (`load_universal`) and there is none."""

import glob
import os
import shutil
from typing import Optional

from ckptd import errors
from ckptd.deepspeed._convert_program import convert
from ckptd.deepspeed._process import Place

LATEST = "latest_universal"
_FOLDER = ".ckptd-universal"  # In the root; it holds the universal checkpoint that was made last.


def universal_of(place: Place) -> Optional[Place]:
    """Returns where the universal checkpoint of a tag is, which is made if it is missing or older than the tag.

    Returns:
        None if the tag is universal itself, or has no state of ZeRO.

    Raises:
        CannotConvert: it cannot be converted without loss.
        errors.NotFound: there is no such tag.
        errors.Corrupt: it is damaged.
    """
    if not os.path.isdir(place.path):
        raise errors.NotFound(f"there is no checkpoint {place.path}", reason="NO_CHECKPOINT", tag=place.tag)
    shards = glob.glob(os.path.join(glob.escape(place.path), "*_optim_states.pt"))
    if not shards or os.path.isdir(os.path.join(place.path, "zero")):
        return None
    made = Place(os.path.join(place.root, _FOLDER), place.tag)
    if not os.path.isdir(made.path) or _time_of(made.path) < max(map(_time_of, shards)):
        shutil.rmtree(made.root, ignore_errors=True)
        os.makedirs(made.root)
        convert("ds-to-universal", [f"--input_folder={place.path}", f"--output_folder={made.path}", *_options(place)])
    return made


def _time_of(path: str) -> int:
    return os.stat(path).st_mtime_ns


def _options(place: Place) -> "list[str]":
    # Without tensor parallelism nothing that may be missing decides how parameters are merged.
    is_parallel = glob.glob(os.path.join(glob.escape(place.path), "*mp_rank_01_*"))
    return [] if is_parallel else ["--inject_missing_state"]
