"""Names, links, and folders that were moved, copied or taken away."""

from __future__ import annotations

import os
import pathlib
import shutil
import threading
from typing import Any

import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same, refused

AREA = "Names, links and folders"
STATE = {"w": torch.arange(1000.0)}


def load(reader: Any, path: pathlib.Path) -> None:
    expect_same(reader.load(path, {"w": torch.zeros(1000)}), STATE)


@case(AREA, "dcp")
def link_to_a_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A link to a checkpoint, such as best, is loaded."""
    writer.save(folder / "runs/step-1", STATE)
    os.symlink("step-1", folder / "runs/best")
    load(reader, folder / "runs/best")


@case(AREA, "dcp")
def link_to_the_folder_of_the_run(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The folder of a run may be reached by a link, to save and to load."""
    (folder / "disk").mkdir()
    os.symlink(folder / "disk", folder / "runs")
    writer.save(folder / "runs/step-1", STATE)
    load(reader, folder / "disk/step-1")
    load(reader, folder / "runs/step-1")


@case(AREA, "dcp")
def renamed_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint that was renamed is loaded by its new name."""
    writer.save(folder / "runs/step-1", STATE)
    (folder / "runs/step-1").rename(folder / "runs/before-the-restart")
    load(reader, folder / "runs/before-the-restart")


@case(AREA, "dcp")
def moved_run(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The folder of a run that was moved is loaded from there."""
    writer.save(folder / "runs/step-1", STATE)
    (folder / "archive").mkdir()
    (folder / "runs").rename(folder / "archive/runs")
    load(reader, folder / "archive/runs/step-1")


@case(AREA, "dcp")
def copied_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A copy of a checkpoint alone, without the rest of its run, is loaded."""
    writer.save(folder / "runs/step-1", STATE)
    shutil.copytree(folder / "runs/step-1", folder / "copy")
    load(reader, folder / "copy")


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a folder. A file that goes away meanwhile makes the copy fail; then it is made again."""
    for last in (False, True):
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            if last:
                raise
            shutil.rmtree(target)


@case(AREA, "dcp")
def copied_run_is_saved_to(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that goes on in a copy of a run changes nothing in the original."""
    writer.save(folder / "runs/step-1", STATE)
    _copy(folder / "runs", folder / "copy")
    writer.save(folder / "copy/step-2", {"w": torch.zeros(1000)})
    load(reader, folder / "runs/step-1")
    load(reader, folder / "copy/step-1")
    expect(not (folder / "runs/step-2").exists(), "the original has a checkpoint of the copy")


@case(AREA, "dcp")
def relative_path_and_another_directory(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A relative path means the current directory of the call, also for an async save."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    os.chdir(folder / "a")
    saved = writer.async_save(pathlib.Path("runs/step-1"), STATE)
    os.chdir(folder / "b")
    saved.result(60)
    expect_kept((folder / "a/runs/step-1").is_dir(), "it is not where the path of the call leads")
    load(reader, folder / "a/runs/step-1")


@case(
    AREA,
    "dcp",
    reason="the folder above a checkpoint is the root of ckptd, and nobody has named the current directory as one; the error "
    "names what to write, such as checkpoint/step-1",
)
def bare_name_in_the_current_directory(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint may be named without any folder, as in DCP's tutorials."""
    writer.save(pathlib.Path("checkpoint"), STATE)
    load(reader, folder / "checkpoint")


@case(AREA, "dcp")
def home_directory_in_the_path(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A path that begins with ~ means the home directory, and does not make a folder called ~."""
    os.environ["HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    writer.save(pathlib.Path("~/runs/step-1"), STATE)
    expect((folder / "home/runs/step-1").is_dir(), "it is not below the home directory")
    load(reader, folder / "home/runs/step-1")


@case(AREA, "dcp")
def spaces_and_letters_of_all_languages_in_the_folder(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The folder of a run may have spaces, quotes, percent signs and any letters in its name."""
    root = folder / "наші дані/100% “final” #2 'x'"
    root.mkdir(parents=True)
    writer.save(root / "step-1", STATE)
    load(reader, root / "step-1")


@case(
    AREA,
    "dcp",
    reason="a tag has 1 to 200 of `[A-Za-z0-9._=+,@-]`; another name is refused at the first save, with the characters named",
)
def spaces_in_the_name_of_the_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The name of a checkpoint may have spaces."""
    writer.save(folder / "runs/step 1", STATE)
    load(reader, folder / "runs/step 1")


@case(AREA, "dcp")
def metric_in_the_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Names such as epoch=3-val_loss=0.25 are kept as they are."""
    writer.save(folder / "runs/epoch=3-val_loss=0.25", STATE)
    load(reader, folder / "runs/epoch=3-val_loss=0.25")


@case(AREA, "dcp")
def trailing_slash_and_dots(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Other spellings of a path lead to the same checkpoint."""
    writer.save(pathlib.Path(f"{folder}/runs/../runs//step-1/"), STATE)
    load(reader, folder / "runs/step-1")
    load(reader, pathlib.Path(f"{folder}/./runs/step-1/"))


@case(AREA, "dcp", crosswise=False)
def folder_of_another_program_in_the_place(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A save to a folder with files of others does not destroy them."""
    (folder / "runs/step-1").mkdir(parents=True)
    (folder / "runs/step-1/notes.txt").write_text("precious")
    try:
        writer.save(folder / "runs/step-1", STATE)
    except FAILURE:
        pass
    expect_kept((folder / "runs/step-1/notes.txt").read_text() == "precious", "the file is gone")


@case(AREA, "dcp", crosswise=False)
def run_that_was_deleted_meanwhile(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Somebody removes the whole folder of a run that is saved to; the next save is whole."""
    writer.save(folder / "runs/step-1", STATE)
    while (folder / "runs").exists():  # The library may still write there.
        shutil.rmtree(folder / "runs", ignore_errors=True)
    try:
        writer.save(folder / "runs/step-2", STATE)
    except FAILURE:  # It may say so once.
        writer.save(folder / "runs/step-3", STATE)
        return load(reader, folder / "runs/step-3")
    load(reader, folder / "runs/step-2")


@case(AREA, "dcp", crosswise=False)
def folder_that_may_not_be_written(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A save to a place where nothing can be written raises, and does not hang."""
    with refused():
        writer.save(pathlib.Path("/proc/ckptd-conformance/step-1"), STATE)


@case(AREA, "dcp", crosswise=False)
def saves_from_two_threads(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Two threads that save to two names of one run leave two whole checkpoints."""
    failures = []

    def save(name: str, value: float) -> None:
        try:
            writer.save(folder / "runs" / name, {"w": torch.full((1000,), value)})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(f"step-{i}", float(i))) for i in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    for i in (1, 2):
        expect_same(reader.load(folder / f"runs/step-{i}", {"w": torch.zeros(1000)})["w"], torch.full((1000,), float(i)))


@case(AREA, "dcp", crosswise=False)
def two_saves_of_one_name_at_once(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Of two async saves to one name, the later one counts, and it is whole."""
    first = writer.async_save(folder / "runs/last", {"w": torch.full((500_000,), 1.0)})
    second = writer.async_save(folder / "runs/last", {"w": torch.full((500_000,), 2.0)})
    first.result(60)
    second.result(60)
    expect_same(reader.load(folder / "runs/last", {"w": torch.zeros(500_000)})["w"], torch.full((500_000,), 2.0))
