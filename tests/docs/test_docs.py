"""The documents are true where a machine can tell: their Python runs, their links lead somewhere, and the
table of errors is the one that the code has.

A Python block in a document has a line before it:
    <!-- example: NAME -->          it is run here as a program of its own, with a daemon to connect to
    <!-- fragment: WHY -->          it is not
In an example /data/ckpts and /tmp/ckptd-tour stand for folders of the test.
"""

from __future__ import annotations

import errno
import os
import pathlib
import re
import select
import shlex
import signal
import subprocess
import sys
from typing import Dict, Iterator, List, Set, Tuple

import pytest

from ckptd.local_daemon import find_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples/README.md",
    ROOT / "tools/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"(?P<before>[^\n]*)\n```python\n(?P<code>.*?)\n```", re.DOTALL)
MARK = re.compile(r"<!-- (?P<kind>example|fragment): (?P<words>.+?) -->")


def python_blocks() -> Iterator[Tuple[pathlib.Path, str, str, str]]:
    """(document, "example" or "fragment" or "", its words, code)"""
    for document in DOCUMENTS:
        for block in BLOCK.finditer(document.read_text()):
            mark = MARK.fullmatch(block["before"].strip())
            yield document, mark["kind"] if mark else "", mark["words"] if mark else "", block["code"]


EXAMPLES = {
    f"{document.stem}-{words}": code for document, kind, words, code in python_blocks() if kind == "example"
}


def test_every_python_block_is_an_example_or_says_why_not() -> None:
    unmarked = [
        f"{d.relative_to(ROOT)}: {code.splitlines()[0]}" for d, kind, _, code in python_blocks() if not kind
    ]
    assert not unmarked
    assert EXAMPLES


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import ckptd

    # As a newcomer's, but for the memory, which tests share.
    with ckptd.LocalDaemon(str(tmp_path_factory.mktemp("d")), pool_bytes=64 << 20) as daemon:
        yield daemon.endpoint


def test_daemon_in_a_terminal_serves_the_line_that_it_prints_until_it_is_interrupted(tmp_path: pathlib.Path) -> None:
    arguments = [find_program(), "--local", str(tmp_path / "d"), "--pool_bytes", "64MiB"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert select.select([program.stdout], [], [], 120)[0]
        export = program.stdout.readline().decode()  # The daemon keeps its standard output: do not read to the end.
        code = (
            "import ckptd\nrun = ckptd.connect().run('ckpts', rank=0, world_size=1)\n"
            "run.save('a', files={'a': b'x'}).wait('committed', 60)"
        )
        command = f"{export}{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
        subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, timeout=120)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0
    assert (tmp_path / "ckpts/a/.ckptd/manifest").exists()
    wrong = subprocess.run([*arguments[:-1], "1KiB"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "pool.bytes: 1024 is not in [8388608" in wrong.stderr


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(name: str, endpoint: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "ckpts").mkdir()
    code = (
        EXAMPLES[name]
        .replace("/data/ckpts", str(tmp_path / "ckpts"))
        .replace("/tmp/ckptd-tour", str(tmp_path / "d"))
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "SLURM_NTASKS")}
    environment["CKPTD_ENDPOINT"] = endpoint
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("**/ckpts/**/.ckptd/manifest")), "the example has saved nothing"


def anchors(document: pathlib.Path) -> Set[str]:
    """The anchors that a Markdown viewer gives a document's headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: pathlib.Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_readme_has_at_most_800_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_docs_readme_links_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not {page for page in pages if f"]({page}" not in index}


def test_every_framework_has_what_is_needed_before_and_the_way_back() -> None:
    frameworks = (ROOT / "docs/frameworks.md").read_text()
    pages = set(re.findall(r"^\| .+ \| `.+` \| \[(\w+\.md)\]", frameworks, re.MULTILINE))
    assert pages == {f"{name}.md" for name in ("dcp", "deepspeed", "lightning", "nxd", "torchtnt", "transformers")}
    for page in sorted(pages):
        text = (ROOT / "docs" / page).read_text()
        before, _, after = text.partition("\n## Before you begin\n")
        assert "```" not in before and after.startswith("\n- **Packages.** "), page
        assert text.count("\n## Going back\n\n1. ") == 1, page


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_begins_with_who_it_is_for(page: pathlib.Path) -> None:
    text = re.sub(r"<!--.*?-->\n*", "", page.read_text(), flags=re.DOTALL)
    title, first = text.split("\n\n")[:2]
    assert title.startswith("# ")
    assert first.startswith("For ") and "After reading" in " ".join(first.split())


def test_every_command_of_ckptctl_in_the_documents_is_one() -> None:
    program = os.path.join(os.path.dirname(sys.executable), "ckptctl")
    text = "".join(document.read_text() for document in DOCUMENTS)
    lines = re.findall(r"^\$ ckptctl (.+)$|`ckptctl ([a-z][^`]*)`", text, re.MULTILINE)
    named = {(one or other).split()[0] for one, other in lines}
    assert len(named) > 10
    for command in sorted(named):
        run = subprocess.run([program, command, "--help"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, f"ckptctl {command}: {run.stderr}"


def test_every_piece_of_configuration_in_the_documents_is_accepted(tmp_path: pathlib.Path) -> None:
    program = os.path.join(os.path.dirname(sys.executable), "ckptd")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    text = "".join(document.read_text() for document in (ROOT / "docs").glob("*.md"))
    pieces = re.findall(r"`((?:pool|io|metrics|log|limits|security|scrub|cluster) \{ [^`]+ \})`", text)
    assert len(pieces) > 3
    for piece in pieces:
        file = tmp_path / "ckptd.txtpb"
        piece = piece.replace("/etc/ckptd/metrics.token", str(token)).replace('"prometheus"', '"root"')
        file.write_text(piece + "\n")
        command = [program, "--check_config", f"--config={file}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stdout) == (0, "ok\n"), f"{piece}: {run.stderr}"


def reasons_in_code() -> Dict[str, Set[str]]:
    """reason -> codes, wherever the sources name both; the reason as a literal or as a constant of reasons.h."""
    found: Dict[str, Set[str]] = {}
    sources = [
        p
        for d in ("storage", "daemon", "client")
        for p in (ROOT / d).rglob("*.cc")
        if not p.stem.endswith("_test")
    ]
    headers = ("storage/base/reasons.h", "daemon/etcd/etcd_errors.h", "daemon/ledger/keys/ledger_reasons.h")
    text = "".join((ROOT / header).read_text() for header in headers)
    constants = dict(re.findall(r'inline constexpr char (k\w+)\[\] = "([A-Z][A-Z0-9_]+)";', text))
    made = r'StatusCode::k(\w+),\s*(?:"([A-Z][A-Z0-9_]+)"|(?:ledger_)?reason::(k\w+))'
    for source in sources:
        for code, literal, constant in re.findall(made, source.read_text()):
            reason = literal or constants[constant]
            if reason not in errno.errorcode.values():  # Those are the operating system's words.
                found.setdefault(reason, set()).add(re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper())
    assert len(found) > 30, "the sources do not look as this test expects"
    return found


def table_rows() -> Iterator[List[str]]:
    """The cells of each row of the table of errors: condition, code, reasons, and perhaps more."""
    for row in re.findall(r"^\|(.+)\|$", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) >= 3 and re.fullmatch(r"[A-Z][A-Z0-9_]+(, [A-Z][A-Z0-9_]+)*", cells[2]):
            yield cells


def reasons_in_table() -> Dict[str, Set[str]]:
    found: Dict[str, Set[str]] = {}
    for cells in table_rows():
        for reason in cells[2].split(", "):
            found.setdefault(reason, set()).add(cells[1])
    return found


def test_every_reason_of_the_code_is_in_the_table_and_the_other_way_round() -> None:
    code, table = reasons_in_code(), reasons_in_table()
    # Errors that are made of an errno, one that the clients alone know, and one that etcd keeps without its code.
    elsewhere = {"IO_ERROR", "NO_SPACE", "WAIT_TIMEOUT", "NODE_LOST"}
    assert set(code) - set(table) == set(), "reasons without a row in docs/protocol.md"
    assert set(table) - set(code) - elsewhere == set(), "rows of docs/protocol.md that no code makes"


def test_the_table_has_the_codes_that_the_code_uses() -> None:
    code, table = reasons_in_code(), reasons_in_table()
    wrong: List[str] = []
    for reason, codes in sorted(code.items()):
        listed = {one for cell in table.get(reason, set()) for one in cell.split(", ")}
        if listed != {"as the status says"} and codes - listed:
            wrong.append(f"{reason}: {sorted(codes)} in the code, {sorted(listed)} in the table")
    assert not wrong


def test_the_metrics_are_the_ones_that_operations_md_lists() -> None:
    exported = set(re.findall(r'"(ckptd_[a-z_]+)"', (ROOT / "daemon/metrics/metrics.cc").read_text()))
    operations = (ROOT / "docs/operations.md").read_text()
    listed = set(re.findall(r"^- `(ckptd_[a-z_]+)`: ", operations, re.MULTILINE))
    assert exported == listed


def test_the_log_lines_that_operations_md_quotes_are_those_of_the_daemon() -> None:
    operations = (ROOT / "docs/operations.md").read_text()
    quoted = {words for words in re.findall(r"`([a-z][a-z .;]+)`", operations) if words.count(" ") > 2}
    assert len(quoted) > 3
    sources = "".join(path.read_text() for path in sorted((ROOT / "daemon").rglob("*.cc")))
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    missing = {words for words in quoted if not all(piece.strip() in sources for piece in words.split("..."))}
    assert not missing


def test_every_field_of_the_configuration_is_in_operations_md() -> None:
    proto = (ROOT / "proto/ckptd/config/v1/config.proto").read_text()
    operations = (ROOT / "docs/operations.md").read_text()
    messages = re.findall(r"^message (\w+) {(.*?)^}", proto, re.MULTILINE | re.DOTALL)
    fields: Set[str] = set()
    for message, body in messages:
        for kind, name in re.findall(r"^  (?:optional )?(\w+) (\w+) = \d+;", body, re.MULTILINE):
            if kind.endswith("Config"):
                continue
            prefix = "" if message == "DaemonConfig" else message[: -len("Config")].lower() + "."
            fields.add(prefix + name)
    assert len(fields) > 15
    assert not {field for field in fields if f"`{field}`" not in operations}


def rows_of_python() -> Iterator[List[str]]:
    """The rows of the tables that say what Python raises: where a row does not, it is Refused."""
    raised_in_python = False
    for row in re.findall(r"^(\|.+)\|$", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")[1:]]
        if cells[0] == "condition":
            raised_in_python = cells[-1] == "Python"
        elif raised_in_python and cells[2].isupper():
            yield cells if len(cells) == 5 else [*cells, "`Refused`"]


def test_the_table_names_what_the_python_client_raises() -> None:
    from ckptd import errors

    rows = list(rows_of_python())
    assert len(rows) > 100
    wrong = []
    for cells in rows:
        if not cells[4].startswith("`"):
            continue
        for reason in cells[2].split(", "):
            raised = type(errors.make(cells[1], reason, "")).__name__
            if cells[4] != f"`{raised}`":
                wrong.append(f"{reason}: {raised} is raised, {cells[4]} in the table")
    assert not wrong


def test_tools_readme_has_a_row_for_every_script() -> None:
    scripts = {f"tools/{path.name}" for path in (ROOT / "tools").iterdir() if path.is_file()}
    scripts -= {"tools/BUILD", "tools/README.md"}
    listed = set(re.findall(r"^\| `(tools/[\w.]+)` \|", (ROOT / "tools/README.md").read_text(), re.MULTILINE))
    assert listed == scripts
