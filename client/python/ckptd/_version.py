"""The version of the installed package, or of the source tree."""

import pathlib


def _find() -> str:
    # The source tree first, because an older wheel may be installed beside it.
    source = (
        pathlib.Path(__file__).resolve().parents[3] / "VERSION"
        if len(pathlib.Path(__file__).parents) > 3
        else None
    )
    if source is not None and source.with_name("WORKSPACE").is_file():
        return source.read_text().strip()
    from importlib import metadata

    try:
        return metadata.version("ckptd")
    except metadata.PackageNotFoundError:  # The package was copied, and is neither installed nor in its source tree.
        return "0+unknown"


__version__ = _find()
