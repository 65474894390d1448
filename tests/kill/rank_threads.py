"""The ranks of a launch as threads of the test, for tests that kill only the daemon."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Dict, List

from killable_daemon import TIMEOUT, KillableDaemon
from save_record import SaveRecord, Version

import ckptd

COMMIT_TIMEOUT = 10.0  # Seconds from the first Begin to the last Seal.


class RankThreads:
    def __init__(self, daemon: KillableDaemon, record: SaveRecord, world_size: int) -> None:
        self.daemon = daemon
        self.record = record
        self.world_size = world_size
        self._pool = concurrent.futures.ThreadPoolExecutor(world_size)
        self._clients: List[ckptd.Client] = []
        self._runs: Dict[int, ckptd.Run] = {}
        self._lock = threading.Lock()
        self._closing = False

    def connect(self) -> RankThreads:
        """Connects each rank. The daemon must serve now; later the clients reconnect by themselves."""
        while len(self._clients) < self.world_size:
            self._clients.append(ckptd.connect(self.daemon.endpoint))
        return self

    def save(self, tag: str, size: int) -> concurrent.futures.Future[None]:
        """Saves on all ranks. When the future is done, the record has what each was told."""
        self.connect()
        version = self.record.begin(tag, self.world_size, size)
        ranks = [self._pool.submit(self._save, rank, version) for rank in range(self.world_size)]
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def finished(_: Any) -> None:
            with self._lock:
                if done.done() or not all(rank.done() for rank in ranks):
                    return
                error = next((rank.exception() for rank in ranks if rank.exception()), None)
                done.set_exception(error) if error else done.set_result(None)

        for rank in ranks:
            rank.add_done_callback(finished)
        return done

    def run(self, rank: int) -> ckptd.Run:
        if rank not in self._runs:
            self._runs[rank] = self._clients[rank].run(
                str(self.record.root),
                rank=rank,
                world_size=self.world_size,
                num_kept_ckpts=self.record.keep,
                commit_timeout=COMMIT_TIMEOUT,
                share_unchanged=self.record.unchanged > 0,
            )
        return self._runs[rank]

    def _save(self, rank: int, version: Version) -> None:
        try:
            save = self.run(rank).save(version.tag, files=version.files(rank), timeout=COMMIT_TIMEOUT)
            save.wait("committed", TIMEOUT)
            self.record.committed(version, save.sequence)
        except ckptd.CheckpointFailed as error:
            assert error.reason != "RANKS_MISSING", f"rank {rank} was told that a living rank is missing: {error}"
            self.record.failed(version, error.reason)
        except ckptd.CkptdError:
            if not self._closing:
                raise

    def close(self) -> None:
        """Gives up saves in flight; the record is not told how they end."""
        self._closing = True
        for client in self._clients:
            client.close()
        self._pool.shutdown()
