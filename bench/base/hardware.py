"""The machine that figures are of, in words: its processor, memory, disk and kernel."""

from __future__ import annotations

import os
import pathlib
import platform
import subprocess
from typing import Dict, Optional

from bench.base import machine
from bench.base.leftovers import value_of

_SYSTEM = pathlib.Path("/sys")
_PAGES = "kernel/mm/transparent_hugepage"


def describe(folder: pathlib.Path, system: pathlib.Path = _SYSTEM) -> Dict[str, str]:
    """folder: on the disk that is measured. system: where sysfs is."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = {
        "processor": machine.processor(),
        "cores": f"{os.cpu_count()} cores",
        "caches": caches(system) or "caches unknown",
        "memory": f"{memory / 2**30:.1f} GiB of memory",
        "huge pages": f"huge pages '{value_of(system / _PAGES / 'enabled')}', shared '{value_of(system / _PAGES / 'shmem_enabled')}'",
        "disk": disk(folder, system),
        "kernel": f"Linux {platform.release()}",
    }
    if gpu := graphics():
        found["gpu"] = gpu
    return found


def in_words(described: Dict[str, str]) -> str:
    return ", ".join(described.values())


def caches(system: pathlib.Path = _SYSTEM) -> str:
    """The caches of the first core, such as "L1d 48 KiB, L2 2 MiB, L3 480 MiB". Empty if the kernel tells none."""
    found = []
    for place in sorted(system.glob("devices/system/cpu/cpu0/cache/index*")):
        kind, level, size = (_text(place / name) for name in ("type", "level", "size"))
        if kind != "Instruction" and level and size:
            kib = int(size.rstrip("K"))
            found.append(f"L{level}{'d' if kind == 'Data' else ''} {f'{kib >> 10} MiB' if kib >= 1024 and kib % 1024 == 0 else f'{kib} KiB'}")
    return ", ".join(found)


def disk(folder: pathlib.Path, system: pathlib.Path = _SYSTEM) -> str:
    """The disk of a folder: its model, size and file system."""
    # A long list, of which the last line is the mount on top.
    mounted = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", str(folder)], capture_output=True, text=True)
    kind = (mounted.stdout.split() or ["an unknown file system"])[-1]
    number = os.stat(folder).st_dev
    place = system / f"dev/block/{os.major(number)}:{os.minor(number)}"
    if not place.exists():
        return f"{kind}, which is on no block device"
    device = place.resolve()
    if (device / "partition").exists():
        device = device.parent
    model = _text(device / "device/model") or {"vd": "virtio disk", "dm": "device mapper"}.get(device.name[:2], device.name)
    size = int(_text(device / "size") or 0) * 512
    return f"{model} of {size / 1e9:.0f} GB with {kind}"


def graphics() -> Optional[str]:
    """The model of each NVIDIA GPU. None without one."""
    models = []
    for place in sorted(pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information")):
        models += [line.partition(":")[2].strip() for line in place.read_text().splitlines() if line.startswith("Model:")]
    return ", ".join(models) or None


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
