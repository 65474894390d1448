"""What bash, zsh and fish offer with the completion scripts of ckptctl."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from harness import find_program


def script(shell: str, folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / name
    path.write_bytes(
        subprocess.run(
            [find_program("ckptctl"), "completion", shell], check=True, capture_output=True, timeout=60
        ).stdout
    )
    return path


def bash(folder: pathlib.Path, line: str) -> list[str]:
    """Asks what bash completes at the end of the line; it splits words at "=", as bash does."""
    path = script("bash", folder, "ckptctl.bash")
    words = line.replace("=", " = ").split(" ")
    program = f'source {path}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ckptctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.split())


def fish(folder: pathlib.Path, line: str) -> list[str]:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = script("fish", folder, "ckptctl.fish")
    # fish only looks at options of a program that is there.
    environment = {**os.environ, "PATH": f"{pathlib.Path(find_program('ckptctl')).parent}:{os.environ['PATH']}"}
    command = ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=folder, env={**environment, "HOME": str(folder)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(offer.split("\t")[0] for offer in done.stdout.splitlines())


def zsh(folder: pathlib.Path, line: str) -> list[str]:
    """Types the line and the tab key into a zsh with a terminal, whose compadd writes down what it is given."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script("zsh", folder, "_ckptctl")
    offers = folder / "offers"
    offers.unlink(missing_ok=True)
    # zpty is zsh's own terminal; `print -w` writes what a person would type.
    program = f"""
zmodload zsh/zpty
zpty shell "zsh -f -i"
zpty -w shell 'PS1=; fpath=({folder} $fpath); cd {folder}; autoload -Uz compinit; compinit -u -d {folder}/dump'
zpty -w shell 'compadd() {{ builtin compadd -A found "$@"; print -rl -- $found >> {offers}; builtin compadd "$@" }}'
zpty -w shell 'finish() {{ zle -I; print -r -- EN""D; exit }}; zle -N finish; bindkey "^X" finish; print READ""Y'
zpty -r -m shell text '*READY*' || exit 3
zpty -w -n shell {line!r}$'\\t\\x18'
zpty -r -m shell text '*END*' || exit 4
"""
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return sorted(set(offers.read_text().split("\n")) - {""}) if offers.exists() else []


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_are_completed(shell: str, tmp_path: pathlib.Path) -> None:
    offers = SHELLS[shell](tmp_path, "ckptctl ")
    assert {"status", "save", "list", "convert", "completion"} <= set(offers)
    assert "nxd-zero" not in offers
    assert set(SHELLS[shell](tmp_path, "ckptctl --output=json convert ")) >= {"nxd-zero", "zero-to-fp32", "ds-to-universal"}


@pytest.mark.parametrize("shell", SHELLS)
def test_options_of_the_command_are_completed(shell: str, tmp_path: pathlib.Path) -> None:
    offers = SHELLS[shell](tmp_path, "ckptctl watch --")
    assert {"--until-idle", "--interval", "--endpoint", "--output"} <= {offer.rstrip("=") for offer in offers}
    assert "--all" not in offers
    assert "--not-there" in SHELLS[shell](tmp_path, "ckptctl resolve --n")


@pytest.mark.parametrize("shell", SHELLS)
def test_words_that_an_option_takes_are_completed(shell: str, tmp_path: pathlib.Path) -> None:
    offers = SHELLS[shell](tmp_path, "ckptctl list --output=")
    assert {offer.rpartition("=")[2] for offer in offers} == {"text", "json"}
    assert {offer.rpartition("=")[2] for offer in SHELLS[shell](tmp_path, "ckptctl list --output j")} == {"json"}


def test_bash_completes_files_where_no_word_is_known(tmp_path: pathlib.Path) -> None:
    assert bash(tmp_path, "ckptctl verify /et") == []  # Then bash itself completes a file's name.
    text = (tmp_path / "ckptctl.bash").read_text()
    assert "complete -o bashdefault -o default -F _ckptctl ckptctl" in text
