"""File systems that nodes share over a network, each node by a client, and a cache, of its own.

A suite runs on one of them in a sandbox (sandbox.py), whose programs and mounts end with it.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Optional

from shared_file_systems.file_system import SharedFileSystem
from shared_file_systems.glusterfs import GlusterFs
from shared_file_systems.juicefs import JuiceFs
from shared_file_systems.moosefs import MooseFs
from shared_file_systems.nfs import Nfs

LOCAL = "local"
NETWORK: Dict[str, Callable[[], SharedFileSystem]] = {
    "nfs": Nfs,
    "glusterfs": GlusterFs,
    "moosefs": MooseFs,
    "juicefs": JuiceFs,
}
# In a sandbox: the name of the file system that nodes share there.
VARIABLE = "CKPTD_TEST_FILE_SYSTEM"


def chosen() -> Optional[SharedFileSystem]:
    """The file system of this sandbox; None outside of any: nodes share a local folder."""
    name = os.environ.get(VARIABLE, LOCAL)
    return None if name == LOCAL else NETWORK[name]()
