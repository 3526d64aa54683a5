"""Much data: 5 million records, 10,000 streams, 100,000 keys (SPEC K3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import nexo
from nexo.testing import process
from tests.integration.admin_api import Api

pytestmark = pytest.mark.slow

RECORDS, STREAMS, KEYS = 5_000_000, 10_000, 100_000
LONGEST_S = 0.3

PAGES: dict[str, dict[str, object]] = {
    "/overview": {},
    "/stream/list": {"offset": STREAMS - 100},
    "/stream/info": {"stream": "big"},
    "/stream/records": {"stream": "big", "offset": RECORDS // 2},
    "/stream/record": {"stream": "big", "offset": 1_234_567},
    "/stream/groups": {"stream": "big"},
    "/store/keys": {"glob": "*09999*"},
    "/store/key": {"key": "key/050000"},
    "/pubsub/topics": {},
    "/queue/list": {},
    "/connections": {},
    "/pipeline/tables": {},
    "/history": {"broker": "stream"},
}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with process(tmp_path_factory.mktemp("scale") / "nexo") as server:
        asyncio.run(fill(server.url))
        api = Api(server.http_url)
        api.wait_ready()
        yield api


async def fill(url: str) -> None:
    async with nexo.AsyncClient(url) as client:
        big = await client.stream("big").create(retention_bytes=0)
        for _ in range(RECORDS // 50_000):
            await big.publish_many([b"x" * 100] * 50_000)
        for base in range(0, STREAMS, 500):
            names = [f"many/{number:05}" for number in range(base, base + 500)]
            await asyncio.gather(*(client.stream(name).create() for name in names))
        for base in range(0, KEYS, 5_000):
            await client.store.mset({f"key/{n:06}": {"n": n} for n in range(base, base + 5_000)})


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_within_300_ms(full: Api, path: str) -> None:
    took_s = []
    for _ in range(3):  # a shared machine may stall once
        began_s = time.perf_counter()
        full.get(path, **PAGES[path])
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < LONGEST_S


def test_search_finds_one_of_many(full: Api) -> None:
    assert full.get("/stream/list", search="09999")["streams"][0]["name"] == "many/09999"
    assert full.get("/store/keys", glob="*099999")["keys"][0]["key"] == "key/099999"
    page = full.get("/stream/records", stream="big", offset=RECORDS - 3)
    assert [row["offset"] for row in page["records"]] == [RECORDS - 3, RECORDS - 2, RECORDS - 1]
