"""Books of many things, filled in rounds."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.admin.watching.alerts import Alert
from nexo.admin.watching.survey import Book
from nexo.admin.watching.watch import StreamWatch
from nexo.model.stream import StreamSeen


def seen(name: str, published: int = 0) -> StreamSeen:
    return StreamSeen(name, 1, published, 0, published, 0)


def much(watch: StreamWatch) -> Iterator[Alert]:
    if watch.info.offsets > 100:
        yield Alert("warning", "much", "stream", watch.info.name, "")


def test_what_a_whole_round_did_not_find_is_gone() -> None:
    book: Book[str, StreamWatch] = Book(much)
    for name in "ab":
        book.see(name, seen(name, 200), 0.0, StreamWatch)
    book.end_round()
    book.see("a", seen("a", 200), 1.0, StreamWatch)
    assert set(book.watches) == {"a", "b"}  # the round goes on
    book.end_round()
    assert set(book.watches) == set(book.alerts) == {"a"}


def test_an_alert_stands_until_the_next_look() -> None:
    book: Book[str, StreamWatch] = Book(much)
    book.see("a", seen("a", 200), 0.0, StreamWatch)
    assert [alert.kind for alert in book.alerts["a"]] == ["much"]
    book.see("a", seen("a", 1), 5.0, StreamWatch)
    assert book.alerts == {}


def test_rates_hold_for_the_seconds_between_two_looks() -> None:
    book: Book[str, StreamWatch] = Book(much)
    book.see("a", seen("a", 0), 0.0, StreamWatch)
    book.see("a", seen("a", 50), 5.0, StreamWatch)
    assert book.watches["a"].published.series.tail(60) == [0.0, *[10.0] * 5]
