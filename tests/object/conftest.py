from __future__ import annotations

from typing import Iterator

import pytest
from bucket_servers import BucketServer, start_moto


@pytest.fixture(scope="session")
def moto() -> Iterator[BucketServer]:
    yield from start_moto()
