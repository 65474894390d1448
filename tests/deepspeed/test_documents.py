"""The Python of docs/deepspeed.md runs."""

import os
import pathlib
import re

from harness import until

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/deepspeed.md"


def code(name):
    found = re.search(rf"<!-- fragment: {name}, which tests/deepspeed runs -->\n```python\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    return found.group(1)


def test_job_of_the_page_saves_and_goes_on(pair, root):
    job = code("install").replace("/data/ckpts", root)
    pair.do(job)
    until(lambda: os.path.exists(f"{root}/global_step3/.ckptd/manifest"), "the commit")
    pair.do(job.replace("4):", "6):"))
    assert pair.do("engine.global_steps, client_state['step']") == [[5, 3]] * 2
    until(lambda: sorted(name for name in os.listdir(root) if name.startswith("g")) == [f"global_step{n}" for n in (3, 4, 5)], "retention")
