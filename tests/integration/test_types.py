"""Values of one's own types through every broker: aliases, nested, optional, unions (U1, U2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import nexo
from nexo.errors import InvalidInput
from nexo.types import Published

pydantic = pytest.importorskip("pydantic")


class Address(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    street: str = pydantic.Field(alias="streetName")


class Person(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    home: Address | None = None


class Robot(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    serial: int


@dataclass
class Parcel:
    to: Person
    weight: float = 1.0


class Label(msgspec.Struct):
    owner: Person


HOME = Address(streetName="Main")
ANA = Person(name="Ana", home=HOME)
VALUES: list[tuple[Any, Any]] = [
    (Address, HOME),
    (Person, ANA),
    (Person, Person(name="Bo")),
    (list[Person], [ANA]),
    (dict[str, Address], {"a": HOME}),
    (Address | None, HOME),
    (Address | None, None),
    (Person | Robot, Robot(serial=7)),
    (Parcel, Parcel(ANA)),
    (list[Parcel | None], [Parcel(ANA), None]),
    (Label, Label(ANA)),
    (tuple[int, Person], (1, ANA)),
]


@pytest.mark.parametrize(("type_", "value"), VALUES, ids=lambda each: str(each)[:40])
async def test_a_value_comes_back_as_its_type(
    aclient: nexo.AsyncClient, type_: Any, value: Any
) -> None:
    """U1: through all four brokers."""
    await aclient.store.set("k", value)
    assert await aclient.store.get("k", type_) == value
    assert await aclient.store.mget(["k"], type_) == [value]
    queue = await aclient.queue("q", type_).create()
    await queue.push(value)
    assert (await queue.pop())[0].value == value
    stream = await aclient.stream("s", type_).create()
    await stream.publish(value)
    assert (await stream.read())[0].value == value
    topic = aclient.pubsub("t", type_)
    async with await topic.messages() as messages:
        await topic.publish(value)
        assert (await messages.get(timeout=5)).value == value


def test_a_value_is_written_by_alias(client: nexo.Client) -> None:
    """What other programs read is what the model's JSON Schema says."""
    client.store.set("k", [HOME])
    assert client.store.get("k") == [{"streetName": "Main"}]


def wrong(client: nexo.Client) -> Sequence[Callable[[Any], Any]]:
    queue, stream = client.queue("q", Person), client.stream("s", Person)
    topic = client.pubsub("t", Person)
    people = client.store.map("m", Person)
    return (
        queue.push,
        lambda value: queue.push_many([ANA, value]),
        stream.publish,
        lambda value: stream.publish_many([ANA, value]),
        topic.publish,
        lambda value: people.set("a", value),
        client.store.list("l", Person).push,
        client.store.set_("x", Person).add,
    )


@pytest.mark.parametrize("which", range(8))
def test_what_does_not_fit_is_refused_before_it_is_stored(client: nexo.Client, which: int) -> None:
    """U2: a wrong dict would poison whoever reads it."""
    client.queue("q").create()
    client.stream("s").create()
    write = wrong(client)[which]
    with pytest.raises(InvalidInput, match="Person"):
        write({"nam": "Ana"})
    with pytest.raises(InvalidInput, match="Person"):
        write("Ana")
    assert client.queue("q").info().waiting == 0
    assert client.stream("s").read() == []
    assert client.store.get("l") is None


def test_what_fits_may_be_a_plain_dict(client: nexo.Client) -> None:
    queue = client.queue("q", Person).create()
    queue.push({"name": "Ana", "home": {"streetName": "Main"}})  # type: ignore[arg-type]
    assert queue.pop()[0].value == ANA


def test_typed_numbers_texts_and_bytes_are_checked_too(client: nexo.Client) -> None:
    client.queue("n", int).create().push(3)
    client.queue("b", bytes).create().push(b"\x00")
    client.queue("t", str).create().push("text")
    client.queue("f", float).create().push(3)
    with pytest.raises(InvalidInput, match="int"):
        client.queue("n", int).push("3")  # type: ignore[arg-type]


def test_ids_of_pushes_are_a_plain_list(client: nexo.Client) -> None:
    """U5: what a web framework can send."""
    ids = client.queue("q").create().push_many(range(3))
    assert type(ids) is list
    assert len(set(json.loads(json.dumps(ids)))) == 3


def test_places_of_records_are_rows_created_on_access(client: nexo.Client) -> None:
    """U5: compared, sorted, unpacked and, as a list, sent like rows of a database."""
    encoders = pytest.importorskip("fastapi.encoders")
    stream = client.stream("s").create()
    places = stream.publish_many(range(5))
    rows = [{"partition": 0, "offset": offset} for offset in range(5)]
    assert json.loads(json.dumps(list(places), default=dict)) == rows
    assert encoders.jsonable_encoder(list(places)) == rows
    assert sorted({*places, *reversed(places)}) == places == [Published(**row) for row in rows]
    assert (len(places), places[-1].offset, places[1:3]) == (5, 4, [*places][1:3])
    assert repr(places).startswith(
        "<PublishedBatch of 5 records: [Published(partition=0, offset=0), "
    )
    assert (stream.publish_many([]) or None) is None
    partition, offset = stream.publish(5)
    assert (partition, offset) == (0, 5)


def test_places_are_never_taken_for_pairs(client: nexo.Client) -> None:
    """U5: a JSON encoder that tries `dict` fails, instead of keeping one offset a partition."""
    encoders = pytest.importorskip("fastapi.encoders")
    places = client.stream("s").create().publish_many(range(3))
    with pytest.raises(TypeError):
        dict(places)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="TypeError"):
        encoders.jsonable_encoder(places)


def test_what_is_handed_out_says_what_it_holds(client: nexo.Client) -> None:
    """U5: helpful reprs."""
    queue, stream = client.queue("q").create(), client.stream("s").create()
    queue.push({"to": "ana"})
    stream.publish({"id": 7}, key="k")
    (job,) = queue.pop()
    assert "{'to': 'ana'}" in repr(job)
    assert "attempt 1" in repr(job)
    (record,) = stream.read()
    assert "{'id': 7}" in repr(record)
    assert "key='k'" in repr(record)
    with client.pubsub.subscribe("t") as messages:
        client.pubsub.publish("t", "hello")
        assert "'hello'" in repr(messages.get(timeout=5))
