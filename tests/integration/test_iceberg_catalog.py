"""Any engine attaches the lake with one URL, and can only read it (SPEC I12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, RESTError, UnauthorizedError

import nexo
from nexo import testing
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings

from .admin_api import Api
from .tiering import take


@pytest.fixture
def served(tmp_path: Path) -> Iterator[testing.Process]:
    with testing.process(tmp_path / "nexo") as running:
        yield running


def fill(url: str, lake: Lake) -> None:
    with nexo.connect(url) as client:
        for name, count in (("orders", 5), ("clicks", 3)):
            client.stream(name).create(tiering=True).publish_many([b"x"] * count)
            take(url, lake, name)


def test_pyiceberg_reads_tables_by_the_url_alone(served: testing.Process, tmp_path: Path) -> None:
    fill(served.url, Lake(LakeSettings(tmp_path / "nexo" / "lake")))
    catalog = RestCatalog("nexo", uri=f"{served.http_url}/iceberg")
    assert catalog.list_namespaces() == [("nexo",)]
    assert sorted(catalog.list_tables("nexo")) == [("nexo", "clicks"), ("nexo", "orders")]
    assert catalog.load_table("nexo.orders").scan().to_arrow().num_rows == 5
    with pytest.raises(NoSuchTableError):
        catalog.load_table("nexo.nowhere")


def test_nothing_can_be_changed(served: testing.Process, tmp_path: Path) -> None:
    fill(served.url, Lake(LakeSettings(tmp_path / "nexo" / "lake")))
    catalog = RestCatalog("nexo", uri=f"{served.http_url}/iceberg")
    table = catalog.load_table("nexo.orders")
    changes: list[Callable[[], None]] = [
        lambda: catalog.drop_table("nexo.orders"),
        lambda: catalog.create_namespace("other"),
        lambda: table.delete("offset = 0"),
    ]
    for change in changes:
        with pytest.raises((RESTError, NotImplementedError)):
            change()
    assert Lake(LakeSettings(tmp_path / "nexo" / "lake")).get("orders").scan().count() == 5


def test_a_lake_that_is_not_there_has_no_tables(served: testing.Process) -> None:
    api = Api(served.http_url)
    found = api.request("GET", "/iceberg/v1/namespaces/nexo/tables")
    assert found.json == {"identifiers": []}
    refused = api.request("GET", "/iceberg/v1/namespaces/other/tables")
    assert (refused.status, refused.json["error"]["type"]) == (404, "NoSuchTableException")


def test_users_see_the_tables_of_the_streams_that_they_may_read(tmp_path: Path) -> None:
    users = UsersFile(tmp_path / "nexo" / "users.json")
    users.add("root", "a long password", [parse_grant("*:*:*")])
    users.add("reader", None, [parse_grant("stream:read:clicks")])
    token = users.add_token("reader", "lake")
    with testing.process(tmp_path / "nexo", auth=True) as server:
        lake = Lake(LakeSettings(tmp_path / "nexo" / "lake"))
        fill(server.url.replace("://", "://root:a%20long%20password@"), lake)
        where = f"{server.http_url}/iceberg"
        with pytest.raises(UnauthorizedError):
            RestCatalog("nexo", uri=where)
        catalog = RestCatalog("nexo", uri=where, token=token)
        assert catalog.list_tables("nexo") == [("nexo", "clicks")]
        assert catalog.load_table("nexo.clicks").scan().to_arrow().num_rows == 3
        with pytest.raises(ForbiddenError):
            catalog.load_table("nexo.orders")
