"""What saves of a state on a GPU cost the training, and how fast its bytes come and go, beside DCP.

Needs one GPU; everything runs in this process, as one rank.
"""

from __future__ import annotations

import contextlib
import gc
import pathlib
import shutil
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import ckptd

from bench.base.context import BenchContext, describe_milliseconds, describe_rates
from bench.base.result import Result

GB = 10**9
WIDTH = 4096
_BATCH = 8192  # So large that the forward and backward pass take longer than the copy of the state.
_ROUNDS = 5
_QUIET_STEPS = 12


class Size(NamedTuple):
    gigabytes: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.gigabytes}gb.{self.dtype}"


SIZES = [Size(1, "bf16"), Size(4, "fp32"), Size(10, "bf16"), Size(20, "bf16")]
QUICK_SIZES = [Size(1, "bf16")]


def run(context: BenchContext) -> None:
    """Measures each size with a daemon of its own."""
    try:
        import torch
    except ImportError:
        raise SystemExit("tools/bench gpu needs torch") from None
    if not torch.cuda.is_available():
        raise SystemExit("tools/bench gpu needs a GPU, and torch finds none (torch.cuda.is_available() is false)")
    others = _others()
    for size in QUICK_SIZES if context.quick else SIZES:
        job = _Job(size, others)
        with context.daemon(size.gigabytes * GB * 9 // 4, resident=True) as daemon:
            daemon.wait_for_pool()
            with ckptd.connect(daemon.endpoint) as client:
                root = context.new_root()
                _measure_saves(context, job, client.run(root, 0, 1, num_kept_ckpts=1))
                shutil.rmtree(root, ignore_errors=True)
        if not context.quick and size.gigabytes <= 10:  # A bare machine's ten minutes are not enough for more.
            _measure_dcp(context, job)
        del job
        gc.collect()
        torch.cuda.empty_cache()


def _others() -> str:
    """A warning, or nothing."""
    import torch

    free, total = torch.cuda.mem_get_info()
    used = (total - free) / GB
    return f"; other processes use {used:.1f} GB of the GPU, which is not idle then" if free < 0.95 * total else ""


class _Job:
    """A training: a chain of linear layers, whose state_dict() has the bytes that were asked for."""

    def __init__(self, size: Size, others: str) -> None:
        import torch

        self.size = size
        self.others = others  # A warning about them.
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[size.dtype]
        layers = max(1, size.gigabytes * GB // (WIDTH * (WIDTH + 1) * dtype.itemsize))
        torch.manual_seed(7)
        with torch.device("cuda"):
            self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(layers)))
            self.data = torch.randn(_BATCH, WIDTH, dtype=dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.state = self.model.state_dict()
        self.bytes = sum(tensor.nbytes for tensor in self.state.values())

    def step(
        self, between: Optional[Callable[[], Any]] = None, before_update: Optional[Callable[[], Any]] = None
    ) -> float:
        """Trains one step on an idle GPU, until the GPU is idle again. Returns its seconds.

        between: runs before the step, and counts.
        before_update: runs after the backward pass, and counts.
        """
        import torch

        torch.cuda.synchronize()
        begin = time.perf_counter()
        if between is not None:
            between()
        self.model(self.data).float().square().mean().backward()
        if before_update is not None:
            before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def _measure_saves(context: BenchContext, job: _Job, run: ckptd.Run) -> None:
    import torch

    limits = _Limits(job)
    rounds = 2 if context.quick else _ROUNDS if job.size.gigabytes <= 4 else 3
    for _ in range(3):
        job.step()
    quiet = [job.step() for _ in range(_QUIET_STEPS)]
    usual = statistics.median(quiet)

    def save(tag: str, stage: str) -> ckptd.Save:
        return run.save(tag, files={"model.pt": job.state}, stage=stage, timeout=120)  # type: ignore[arg-type]

    first: Dict[str, float] = {}
    began = time.perf_counter()
    saved: List[ckptd.Save] = []
    first["blocked"] = job.step(lambda: saved.append(save("first", "overlap"))) - usual
    saved[-1].wait("staged", timeout=120)
    first["staged"] = time.perf_counter() - began
    saved[-1].wait(timeout=300)

    calls: List[float] = []
    blocked: List[float] = []
    during: List[float] = []
    copies: List[float] = []
    d2h: List[float] = []
    for number in range(rounds):
        def overlap() -> None:
            begin = time.perf_counter()
            saved.append(save(f"overlap-{number}", "overlap"))
            calls.append(time.perf_counter() - begin)

        blocked.append(job.step(overlap) - usual)
        while saved[-1].level in ("open", "staged", "sealed"):
            during.append(job.step())
        saved[-1].wait(timeout=300)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        saved.append(save(f"blocking-{number}", "blocking"))
        copies.append(time.perf_counter() - begin)
        d2h.append(limits.d2h())
        saved[-1].wait(timeout=300)
    name = job.size.name
    words = f"a step takes {usual * 1e3:.0f} ms; {len(job.state)} tensors{job.others}"
    _report(context, f"gpu.call_ms.{name}", [one * 1e3 for one in calls], "ms", f"run.save(stage=overlap); {words}")
    _report(
        context,
        f"gpu.blocked_ms.{name}",
        [one * 1e3 for one in blocked],
        "ms",
        f"the step with the save, beside one without: {describe_milliseconds(quiet)}{job.others}",
    )
    limit = statistics.median(d2h)
    words = f"cudaMemcpyAsync of the same tensors and torch's pinned memory: {describe_rates([job.bytes / one for one in d2h])}"
    context.report(
        Result(
            f"gpu.d2h.vs_limit.{name}",
            limit / statistics.median(copies),
            "x",
            f"{words}; the whole blocking call {describe_rates([job.bytes / one for one in copies])}",
        )
    )
    if during:
        words = f"{len(during)} steps while the save was written: {describe_milliseconds(during)}"
        context.report(Result(f"gpu.step_inflation.{name}", statistics.median(during) / usual, "x", words))
    words = f"bytes staged {first['staged'] * 1e3:.0f} ms after the call, with the pinning of the memory"
    context.report(Result(f"gpu.first_blocked_ms.{name}", first["blocked"] * 1e3, "ms", words))
    _measure_restore(context, job, run, limits)


def _measure_restore(context: BenchContext, job: _Job, run: ckptd.Run, limits: "_Limits") -> None:
    import torch

    h2d, into, fresh = [], [], []
    for _ in range(3):
        with run.open("latest") as checkpoint:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            checkpoint.load("model.pt", into=job.state)
            torch.cuda.synchronize()
            into.append(time.perf_counter() - begin)
        h2d.append(limits.h2d())
    if job.size.gigabytes <= 10:
        for _ in range(2):
            with run.open("latest") as checkpoint:
                begin = time.perf_counter()
                loaded = checkpoint.load("model.pt", map_location="cuda")
                torch.cuda.synchronize()
                fresh.append(time.perf_counter() - begin)
            del loaded
    words = f"cudaMemcpyAsync of the same tensors and torch's pinned memory: {describe_rates([job.bytes / one for one in h2d])}"
    name = job.size.name
    for what, found in (("into", into), ("fresh", fresh)):
        if found:
            context.report(
                Result(
                    f"gpu.h2d.{what}.vs_limit.{name}",
                    statistics.median(h2d) / statistics.median(found),
                    "x",
                    f"{words}; ours {describe_rates([job.bytes / one for one in found])}",
                )
            )


class _Limits:
    """The copies that cost a job's bytes the least: between the same tensors and pinned memory, and nothing else."""

    def __init__(self, job: _Job) -> None:
        import torch

        self._job = job
        self._pinned = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in job.state.values()]

    def d2h(self) -> float:
        return self._copy(zip(self._pinned, self._job.state.values()))

    def h2d(self) -> float:
        return self._copy(zip(self._job.state.values(), self._pinned))

    def _copy(self, pairs: Any) -> float:
        import torch

        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def _measure_dcp(context: BenchContext, job: _Job) -> None:
    """The same steps with DCP's async_save, whose stager copies to pinned memory beside the training."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    usual = statistics.median([job.step() for _ in range(_QUIET_STEPS)])
    with _process_group(context.folder), contextlib.ExitStack() as at_end:
        options = StagingOptions(
            use_pinned_memory=True, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=True
        )
        calls, blocked = [], []
        for number in range(3):
            if number == 0 or torch.__version__ < "2.12":  # torch 2.11 closes the stager after each save.
                stager = DefaultStager(options)
                at_end.callback(stager.close)
            folder = pathlib.Path(context.new_root())
            found: List[Any] = []

            def save() -> None:
                begin = time.perf_counter()
                found.append(dcp.async_save(dict(job.state), checkpoint_id=str(folder), async_stager=stager))
                calls.append(time.perf_counter() - begin)

            # What DCP asks of its users: the state must not change before the staging is complete.
            blocked.append(job.step(save, lambda: found[-1].staging_completion.result()) - usual)
            found[-1].upload_completion.result()
            shutil.rmtree(folder, ignore_errors=True)
    name = job.size.name
    words = "dcp.async_save, pinned memory, staged in a thread; the first save is left out"
    _report(context, f"gpu.call_ms.dcp.{name}", [one * 1e3 for one in calls[1:]], "ms", words)
    words = f"{words}; optimizer.step() waits for staging_completion"
    _report(context, f"gpu.blocked_ms.dcp.{name}", [one * 1e3 for one in blocked[1:]], "ms", words)


@contextlib.contextmanager
def _process_group(folder: pathlib.Path) -> Iterator[None]:
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _report(context: BenchContext, name: str, values: List[float], unit: str, words: str) -> None:
    described = f"[{min(values):.1f}-{max(values):.1f}] {unit} in {len(values)}; {words}"
    context.report(Result(name, statistics.median(values), unit, described))
