"""The keys of DeepSpeed's configuration that are about checkpoints."""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple


class _Refusal(NamedTuple):
    """A setting that ckptd cannot serve."""

    key: Tuple[str, ...]
    is_met: Callable[[Any], bool]  # Called with the value of the key.
    why: str


def _is_on(value: Any) -> bool:
    return bool(value.get("enabled", True)) if isinstance(value, dict) else bool(value)


_NVME = "its tensors lie in files of their own, which DeepSpeed copies without asking the checkpoint engine: use cpu"
_REFUSALS = (
    _Refusal(
        ("checkpoint", "writer"),
        lambda value: value is not None,
        "it chooses another writer than ckptd: remove it",
    ),
    _Refusal(
        ("checkpoint", "use_node_local_storage"),
        bool,
        "it makes a checkpoint of each node's own, and ckptd makes one of all ranks: remove it",
    ),
    _Refusal(
        ("checkpoint", "checkpoint_serialization"),
        lambda value: not value,
        "it asks for torch's format of before 1.6, and ckptd writes zip files only: remove it",
    ),
    _Refusal(("datastates_ckpt",), _is_on, "it chooses another checkpoint engine: remove it"),
    _Refusal(("nebula",), _is_on, "it chooses another checkpoint engine: remove it"),
    _Refusal(("zero_optimization", "offload_optimizer", "device"), lambda value: value == "nvme", _NVME),
    _Refusal(("zero_optimization", "offload_param", "device"), lambda value: value == "nvme", _NVME),
)
_KEPT = ("checkpoint", "num_kept_ckpts")


def check(config: Any) -> None:
    """Raises ValueError for a setting that ckptd cannot serve; the message names its key.

    config: a DeepSpeedConfig, or the dict that one is made of.
    """
    values = _values(config)
    for key, is_met, why in _REFUSALS:
        value = _at(values, key)
        if value is not _MISSING and is_met(value):
            raise ValueError(f"DeepSpeed's configuration has {'.'.join(key)} = {value!r}, which ckptd cannot serve: {why}")


def num_kept_ckpts(config: Any) -> Optional[int]:
    """Returns ``checkpoint.num_kept_ckpts`` of the configuration; None if it is not there."""
    value = _at(_values(config), _KEPT)
    if value is _MISSING or value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"DeepSpeed's configuration has {'.'.join(_KEPT)} = {value!r}; it must be a whole number, at least 1"
        )
    return value


_MISSING = object()


def _values(config: Any) -> Dict[str, Any]:
    values = config if isinstance(config, dict) else getattr(config, "_param_dict", None)
    return values if isinstance(values, dict) else {}


def _at(values: Any, key: Tuple[str, ...]) -> Any:
    for name in key:
        if not isinstance(values, dict) or name not in values:
            return _MISSING
        values = values[name]
    return values
