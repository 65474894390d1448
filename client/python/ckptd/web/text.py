"""Text of the page: escaped, and numbers with units."""

import datetime
import html
from typing import Any


def escaped(words: object) -> str:
    """Paths, tags and messages are other people's: none of them may become markup."""
    return html.escape(str(words), quote=True)


def in_bytes(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    number, unit = float(count), 0
    while abs(number) >= 1023.95 and unit < len(units) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {units[unit]}" if unit == 0 or number >= 99.95 else f"{number:.1f} {units[unit]}"


def in_seconds(seconds: float) -> str:
    if seconds < 9.95:
        return f"{max(seconds, 0):.2g} s"
    whole = round(seconds)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {small_unit}"
    return f"{whole} s"


def unix(time: Any) -> float:
    """The Unix time of a protobuf Timestamp."""
    return float(time.seconds) + float(time.nanos) / 1e9


def at(seconds: float) -> str:
    """Local time, as ckptctl writes it."""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
