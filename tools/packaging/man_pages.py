"""The manual pages, from what the programs print for --help and from the sample configuration."""

from __future__ import annotations

import datetime
import pathlib
import re
import subprocess
from collections.abc import Iterator

# Where --help puts what an option or a command does.
COLUMN = 30


def help_of(program: pathlib.Path, *command: str) -> str:
    return subprocess.run(
        [program, *command, "--help"], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def roff(text: str) -> str:
    """Text that no line of which is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


class Help:
    """The parts of a text that --help prints."""

    def __init__(self, text: str) -> None:
        self.description, _, rest = text.partition("\nUsage: ")
        self.usage, _, rest = rest.partition("\n")
        self.items: dict[str, list[tuple[str, str]]] = {"Positionals": [], "Options": [], "Subcommands": []}
        footer = []
        items = None
        lines = rest.splitlines()
        for line, following in zip(lines, [*lines[1:], ""]):
            heading = re.fullmatch(r" *(\w+):", line)
            if heading:
                items = self.items[heading[1]]
            elif items and line.startswith(" " * COLUMN):
                items[-1] = (items[-1][0], line.strip())
            elif items is not None and re.match(r" {2,4}[\w-]", line):
                # What a long name does is on the following line.
                end = len(line) if following.startswith(" " * COLUMN) else COLUMN
                items.append((line[:end].strip(), line[end:].strip()))
            elif line.strip() and not line.lstrip().startswith("["):  # "[Option Group: ...]"
                footer.append(line)
        self.footer = "\n".join(footer)


def tagged(items: list[tuple[str, str]]) -> Iterator[str]:
    for name, what in items:
        yield f".TP\n.B {roff(name)}\n{roff(what)}"


def page(name: str, section: int, version: str, date: datetime.date, summary: str, body: list[str]) -> bytes:
    title = f'.TH {name.upper()} {section} {date.isoformat()} "ckptd {version}"'
    return "\n".join([title, f".SH NAME\n{roff(name)} \\- {roff(summary)}", *body, ""]).encode()


def command_section(program: pathlib.Path, *command: str) -> Iterator[str]:
    """The section of one command, and those of the commands below it."""
    shown = Help(help_of(program, *command))
    yield f".SS {roff(' '.join(command))}\n{roff(shown.description)}.\n.PP\n.B {roff(shown.usage)}"
    yield from tagged(shown.items["Positionals"])
    yield from tagged([item for item in shown.items["Options"] if "--help" not in item[0]])
    for name, _ in shown.items["Subcommands"]:
        yield from command_section(program, *command, name)


def ckptctl_page(program: pathlib.Path, version: str, date: datetime.date) -> bytes:
    shown = Help(help_of(program))
    body = [
        f".SH SYNOPSIS\n.B {roff(shown.usage)}",
        f".SH DESCRIPTION\n{roff(shown.description)}\n.PP\n{roff(shown.footer)}",
        ".SH OPTIONS",
        *tagged(shown.items["Options"]),
        ".SH COMMANDS",
        *(text for name, _ in shown.items["Subcommands"] for text in command_section(program, name)),
        ".SH SEE ALSO\n.BR ckptd (8),\n.BR ckptd.config (5)",
    ]
    return page("ckptctl", 1, version, date, "inspects and controls ckptd and its checkpoints", body)


def ckptd_page(program: pathlib.Path, version: str, date: datetime.date) -> bytes:
    shown = Help(help_of(program))
    description, _, examples = shown.description.partition(" Example:\n")
    body = [
        f".SH SYNOPSIS\n.B {roff(shown.usage)}",
        f".SH DESCRIPTION\n{roff(description)}",
        ".SH OPTIONS",
        *tagged(shown.items["Options"]),
        f".SH EXAMPLES\n.nf\n{roff(examples)}\n.fi",
        ".SH SIGNALS\nSIGTERM and SIGINT: publishes what is sealed, and ends; a second one ends it at once.\n"
        "SIGHUP: reads the configuration again.",
        ".SH FILES\n.TP\n.I /etc/ckptd/ckptd.txtpb\nThe configuration.\n"
        ".TP\n.I /run/ckptd/ckptd.sock\nThe socket; its group may connect.\n"
        ".TP\n.I /run/ckptd/ckptd.sock.config\nThe configuration in force, for \\fBckptctl debug dump\\fR.\n"
        ".TP\n.I /var/lib/ckptd\nThe list of known roots.",
        ".SH SEE ALSO\n.BR ckptctl (1),\n.BR ckptd.config (5)",
    ]
    return page("ckptd", 8, version, date, "checkpoint daemon for training jobs", body)


def config_page(sample: str, version: str, date: datetime.date) -> bytes:
    """The sample has every field, at its default, below what it means."""
    comment, _, fields = sample.partition("\n\n")
    lines = [line.lstrip("# ") for line in comment.splitlines()]
    body = [
        f".SH DESCRIPTION\n{roff(' '.join(lines[lines.index('') + 1 :]))}",
        f".SH FIELDS\n.nf\n{roff(fields.rstrip())}\n.fi",
        ".SH SEE ALSO\n.BR ckptd (8)",
    ]
    return page("ckptd.config", 5, version, date, "configuration of the checkpoint daemon", body)
