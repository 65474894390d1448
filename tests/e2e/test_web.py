"""python -m ckptd.web beside a real daemon, in a browser where there is one."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import pytest
from harness import ckptctl, until
from test_history import history, save

CHROMIUM = os.environ.get("CKPTD_CHROMIUM") or shutil.which("chromium")


@contextlib.contextmanager
def web(daemon, *more):
    """The program; gives the address that it prints."""
    command = [sys.executable, "-m", "ckptd.web", f"--endpoint={daemon.endpoint}", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def read(address):
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address, timeout=60) as answer:
        return answer.read().decode()


def test_page_follows_a_job_from_its_first_save_to_damage(daemon, trainers, root):
    with web(daemon) as address:
        assert "No run yet" in read(address)
        rank = trainers("a", 1)[0]
        save(rank, "s1", 1)
        save(rank, "s2", 2)
        rank.do("part = run.begin('s3', step=3)\npart.add('a', b'x' * 5000)")
        until(lambda: len(history(daemon, root)) == 2, "the history")
        text = read(address)
        assert "All is well" in text and "resumes at step 2 (s2)" in text and "Saving s3: open" in text
        assert text.count("<circle") == 4, "stall and time of two saves"
        with open(os.path.join(root, "s1", "a"), "r+b") as file:
            file.write(b"damage")
        ckptctl("verify", os.path.join(root, "s1"), endpoint=daemon.endpoint, check=False)
        text = read(address)
        assert "1 problem to look at" in text and f"ckptctl verify {root}/s1" in text
        run = daemon.run_status(root).name
        assert "<h3>History</h3>" in read(address.replace("/?", f"/{run}?"))


def screenshot(address, *options):
    """What Chromium shows, as PNG, and what it complains about."""
    with tempfile.TemporaryDirectory() as folder:
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--screenshot={folder}/page.png", "--enable-logging=stderr"]
        done = subprocess.run([*command, *options, address], capture_output=True, text=True, timeout=120)
        with open(f"{folder}/page.png", "rb") as file:
            return file.read(), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed (or named by $CKPTD_CHROMIUM)")
def test_browser_shows_the_page_light_dark_and_narrow_without_complaint(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    for step in range(1, 4):
        save(rank, f"s{step}", step)
    with web(daemon) as address:
        light, complaints = screenshot(address, "--window-size=1100,900")
        dark, more = screenshot(address, "--window-size=1100,900", "--blink-settings=preferredColorScheme=0")
        narrow, yet_more = screenshot(address, "--window-size=420,900")
    assert complaints == more == yet_more == []
    for picture, width in ((light, 1100), (dark, 1100), (narrow, 420)):
        assert picture[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(picture[16:20], "big") == width
        assert len(picture) > 10_000, "it shows something"
    assert light != dark
