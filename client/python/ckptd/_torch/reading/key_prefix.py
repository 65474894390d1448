"""Names of two states that differ only by what wrappers of a model put into them."""

from typing import Any, Iterable, Optional

# What wrappers put in front of the names of a model, or into their middle; and what makes it.
_WRAPPERS = {
    "_orig_mod.": "torch.compile",
    "module.": "DistributedDataParallel or DataParallel",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module.": "checkpoint_wrapper",
}


def difference(saved: Iterable[Any], target: Iterable[Any]) -> str:
    """Returns what to do about names that differ by a prefix alone; empty if they differ otherwise, or not at all.

    Args:
        saved: the names in the checkpoint.
        target: those of the state to fill.
    """
    there, here = set(saved), set(target)
    if there == here or not there or not here or not all(isinstance(name, str) for name in there | here):
        return ""
    for more, fewer, whose in ((there, here, "the saved names"), (here, there, "the names to fill")):
        for prefix, maker in _WRAPPERS.items():
            if {name.replace(prefix, "") for name in more} == fewer:
                return _advice(whose, prefix, maker)
        common = _common(more, fewer)
        if common is not None:
            return _advice(whose, common, "")
    return ""


def _common(more: "set[str]", fewer: "set[str]") -> Optional[str]:
    """Returns what stands before each of the names, and turns the one set into the other; None if there is nothing."""
    first = min(more)
    for name in fewer:
        prefix = first[: len(first) - len(name)]
        if prefix.endswith((".", "_", "/")) and first == prefix + name and {prefix + each for each in fewer} == more:
            return prefix
    return None


def _advice(whose: str, prefix: str, maker: str) -> str:
    by = f", which {maker} puts there" if maker else ""
    return f'the names differ only by "{prefix}" in {whose}{by}: save and load the state of the same module, wrapped or not'
