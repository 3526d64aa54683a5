"""The lake commands find the server's lake, and only looking at it makes nothing (SPEC I2, K5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyiceberg")

import nexo
from nexo import cli, testing
from nexo.client.views import BackfillResult, ContractColumn
from nexo.errors import Conflict, InvalidInput, InvalidOption, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId

from .tiering import take


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a stream that has tiering and one that has not; elsewhere an empty folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with testing.server(data_dir=tmp_path / "nexo") as url:
        with nexo.connect(url) as client:
            client.stream("taken").create(tiering=True).publish_many([{"n": 1}] * 3)
            client.stream("plain").create().publish({"n": 1})
        yield url
    assert list(elsewhere.iterdir()) == []


def command(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments, "--url", url])


def lake_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "nexo" / "lake").rglob("*"))


def test_status_and_schema_create_nothing(served: str, tmp_path: Path) -> None:
    status = command("pipeline", "status", "--json", url=served)
    assert [json.loads(row)["stream"] for row in status.stdout.splitlines()] == ["taken"]
    shown = command("pipeline", "schema", "taken", url=served)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "no typed columns\n")
    assert command("pipeline", "maintain", url=served).stderr == "the lake has no tables\n"
    assert lake_files(tmp_path) == []


def test_the_schema_of_a_stream_without_tiering_says_so(served: str, tmp_path: Path) -> None:
    shown = command("pipeline", "schema", "plain", url=served)
    assert shown.exit_code == 0
    assert "'plain' has tiering off" in shown.stderr
    for change in (("--infer",), ("--set", '{"n": "long"}'), ("--rename", "a=b")):
        refused = command("pipeline", "schema", "plain", *change, url=served)
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error[CONFLICT]: stream 'plain' has tiering off")
    assert lake_files(tmp_path) == []


def test_changes_are_made_to_the_servers_lake(served: str, tmp_path: Path) -> None:
    done = command("pipeline", "schema", "taken", "--set", '{"n": "long"}', "--json", url=served)
    assert json.loads(done.stdout) == {"column": "n", "type": "long", "field": "n"}
    assert Lake(LakeSettings(tmp_path / "nexo" / "lake")).find("taken") is not None
    assert command("pipeline", "schema", "taken", "--json", url=served).stdout == done.stdout


def test_a_lake_on_another_machine_is_not_guessed(
    served: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nexo.lake.settings.this_host", lambda: "elsewhere")
    for verb in (("status",), ("schema", "taken"), ("run", "--once"), ("maintain",)):
        refused = command("pipeline", *verb, url=served)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"error[CONFIG]: the lake is in {tmp_path}/nexo/lake on ")
        assert "--lake" in refused.stderr


@pytest.mark.parametrize("verb", [("status",), ("schema", "taken"), ("maintain",)])
def test_a_named_lake_that_is_not_there_is_refused(
    served: str, verb: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "typo"
    refused = command("pipeline", *verb, "--lake", str(folder), url=served)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error[NOT_FOUND]: there is no lake in {folder}")
    refused = command("sql", "select 1", "--lake", str(folder), url=served)
    assert refused.stderr.startswith(f"error[NOT_FOUND]: there is no lake in {folder}")
    assert not folder.exists()


@pytest.mark.usefixtures("served")
def test_without_a_server_and_a_lake_here_nothing_is_done() -> None:
    refused = command("pipeline", "maintain", url="nexo://127.0.0.1:1")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error[CONNECTION]: no server answers")


def test_columns_of_a_schema_fill_history_and_letters_are_sent_again(
    served: str, tmp_path: Path
) -> None:
    """I11: from a JSON Schema to columns, to history, to dead letters that are published again."""
    lake = Lake(LakeSettings(tmp_path / "nexo" / "lake"))
    take(served, lake, "taken")
    schema = '{"properties": {"n": {"type": "integer"}}}'
    shown = command("pipeline", "schema", "taken", "--json-schema", schema, "--json", url=served)
    assert json.loads(shown.stdout) == {"column": "n", "type": "long", "field": "n"}
    filled = command("pipeline", "backfill", "taken", "--json", url=served)
    assert json.loads(filled.stdout) == {"stream": "taken", "files": 1, "records": 3}
    assert lake.get("taken").scan().to_arrow().column("n").to_pylist() == [1, 1, 1]
    with nexo.connect(served) as client:
        client.stream("taken").publish({"n": "no number"}, key="k", headers={"a": "b"})
        take(served, lake, "taken")
        stream = StreamId("taken", client.stream("taken").info().created_ms)
        planned = dead_letters.plan(lake, stream)
        assert planned is not None
        dead_letters.finish(*planned, [dead_letters.run(step) for step in planned[1]])
        for count in (1, 0):
            sent = command("pipeline", "redrive", "taken", "--to", "plain", "--json", url=served)
            assert json.loads(sent.stdout) == {"stream": "taken", "to": "plain", "records": count}
        again = client.stream("plain").read()[-1]
    assert (again.value, again.key) == ({"n": "no number"}, "k")
    assert again.headers == {"a": "b", "nexo-dead-letter": "taken/0/3"}


AVRO = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'


def test_a_contract_is_made_and_shown_by_the_command(served: str, tmp_path: Path) -> None:
    """SPEC I11: nested types, inference, modes and formats, each with one option."""

    def schema(*arguments: str) -> Result:
        return command("pipeline", "schema", "taken", *arguments, url=served)

    wanted = '{"n": "long", "lines": "list<struct<sku: string, price: decimal(10, 2)>>"}'
    made = schema("--set", wanted, "--permissive", "--additions")
    assert made.stdout.splitlines() == [
        "n\tlong\tn",
        "lines\tlist<struct<sku: string, price: decimal(10, 2)>>\tlines",
    ]
    assert made.stderr == (
        "values: json; permissive: a field that does not fit is null; new fields become columns\n"
    )
    assert schema().output == made.output
    assert schema("--infer", "--strict", "--no-additions").exit_code == 0
    coded = schema("--avro", AVRO, "--schema-id", "7", "--json")
    assert "values: avro with schema ids 7; strict" in coded.stderr
    assert "values: json" in schema("--format", "json").stderr
    for bad, why in (
        (("--set", '{"a": "list<x>"}'), "column 'a': type 'list<x>': 'x' is not a type"),
        (("--set", '{"n": "string"}'), "column 'n' is long and cannot become string"),
        (("--avro", '{"type": "record"}'), "bad Avro schema"),
        (("--avro", AVRO.replace("record", "recrod")), "bad Avro schema"),
        (("--schema-id", "1"), "--schema-id says"),
        (("--message", "A"), "belong together"),
        (("--model", "nowhere:Order"), "cannot import"),
    ):
        refused = schema(*bad)
        assert refused.exit_code != 0
        assert why in refused.stderr
    assert "values: json; strict" in schema().stderr


def test_the_clients_make_and_show_contracts(served: str, tmp_path: Path) -> None:
    """SPEC I11: the same from Python."""
    lake = Lake(LakeSettings(tmp_path / "nexo" / "lake"))
    with nexo.connect(served) as client:
        contract = client.contract("taken")
        assert contract.info().columns == ()
        take(served, lake, "taken")
        assert contract.infer().columns == (ContractColumn("n", "long", "n"),)
        assert contract.set({"n": "long", "who": "struct<name: string>"}).format == "json"
        client.stream("taken").publish_many([{"n": 1, "who": {"name": "Ada"}}, {"n": "x"}])
        take(served, lake, "taken")
        found = contract.permissive()
        assert (found.permissive, found.additions, found.dead_letters) == (True, False, 0)
        assert contract.additions().additions
        assert contract.rename("n", "number").columns[0] == ContractColumn("number", "long", "n")
        assert contract.backfill() == BackfillResult(1, 3)
        assert client.sql(
            "select who.name from taken where number = 1 and who is not null"
        ).rows() == [("Ada",)]
        assert contract.avro(AVRO, schema_id=7).schema_ids == (7,)
        assert contract.debezium(decimals="text").format == "debezium"
        with pytest.raises(InvalidInput, match="decimal"):
            contract.debezium(decimal="text")
        assert contract.json().format == "json"
        with pytest.raises(NotFound, match="no dead letters"):
            contract.redrive()
        for nothing in ({}, {"a": 1}, int):
            with pytest.raises((InvalidInput, InvalidOption)):
                contract.set(nothing)
        with pytest.raises(Conflict, match="tiering off"):
            client.contract("plain").set({"n": "long"})


async def test_the_async_client_too(served: str) -> None:
    async with nexo.AsyncClient(served) as client:
        assert (await client.contract("taken").set({"n": "int"})).columns[0].type == "int"
