# Generated from _async/once/context.py by tools/unasync.py; edit that file instead.
"""Exactly-once processing: transactions, state, results, outbox, checkpoints (SPEC H3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client._sync.handling import Closing
from nexo.client.checks import function, text, whole
from nexo.client.stream_records import Key
from nexo.errors import InvalidInput, InvalidOption, TransactionAborted
from nexo.model import check_name
from nexo.options.stream import check_transaction
from nexo.options.units import Duration, millis
from nexo.topics._sync.once.nexo_ledger import OnceLedger, ledger_for
from nexo.topics._sync.once.transaction import OnceTransaction
from nexo.topics.once import (
    CHECKPOINT_KEY,
    EPOCH_KEY,
    ONCE,
    STATE,
    Checkpoint,
    OutboxEvent,
    fresh_result,
    now_ms,
    outbox_key,
    pack,
    pack_result,
    result_in,
    state_key,
    states,
    unpack,
    unpack_checkpoint,
    unpack_event,
    waiting,
)
from nexo.topics.progress import current_transaction
from nexo.topics.settings import option_ms

_FLUSHED_TOGETHER = 100
"""Events that one transaction delivers from the outbox."""


class ExactlyOnceContext(Closing):
    """State that makes every effect happen exactly once, whatever is killed when.

    ``server`` is a client, a URL, or ``memory://`` for tests: nothing of that outlives the
    process. Contexts of one ``name`` share everything, in any number of processes. Results of
    `process_once` are kept for ``ttl``. ``deliver`` receives the events of the outbox; without
    it they are sent to their topics.
    """

    def __init__(
        self,
        server: Client | str | None = None,
        *,
        name: str = "default",
        ttl: Duration = "7d",
        deliver: Callable[[OutboxEvent], Any] | None = None,
    ) -> None:
        self._ttl_ms = option_ms("ttl", ttl)
        if self._ttl_ms < 1:
            raise InvalidOption(f"ttl = {ttl!r}: must be longer than 0")
        self._ledger: OnceLedger = ledger_for(server, check_name(name, "context"), self._ttl_ms)
        self._deliver = deliver
        self._running: dict[str, tuple[runtime.Mutex, list[None]]] = {}
        self._flushing = runtime.Mutex()
        self._barrier = runtime.Mutex()

    @property
    def ledger(self) -> OnceLedger:
        """The storage of the context; with ``memory://``, a test can inspect it."""
        return self._ledger

    # -- transactions

    def begin(self, *, timeout: Duration = 60.0) -> OnceTransaction:
        """A transaction: ``with context.begin() as tx``."""
        return OnceTransaction(self._ledger, check_transaction(millis(timeout, "timeout")) / 1000)

    def transaction(
        self, work: Callable[[OnceTransaction], Any], *, timeout: Duration = 60.0
    ) -> Any:
        """Run ``work(tx)`` in a transaction and return what it returns.

        An exception rolls everything back: messages and state are as before, and consumers polled
        in it deliver the same messages again.
        """
        function(work, "the work")
        with self.begin(timeout=timeout) as tx:
            return runtime.invoke(work, tx)

    def _joined(self) -> OnceTransaction | None:
        """The transaction of this context that the caller runs in."""
        found = current_transaction.get()
        if isinstance(found, OnceTransaction) and found.ledger is self._ledger:
            return found
        return None

    @contextmanager
    def _joined_or_new(self) -> Iterator[OnceTransaction]:
        """The transaction that the caller runs in, or one that ends here."""
        if (joined := self._joined()) is not None:
            yield joined
        else:
            with self.begin() as tx:
                yield tx

    # -- state

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the state; within a transaction, as it sees it."""
        if (tx := self._joined()) is not None:
            return tx.get(key, default)
        entry = self._ledger.load(STATE, state_key(key))
        return default if entry.content is None else unpack(entry.content)

    def put(self, key: str, value: Any) -> None:
        """Set a value; within a transaction, with it."""
        with self._joined_or_new() as tx:
            tx.put(key, value)

    def delete(self, key: str) -> None:
        """Remove a value; within a transaction, with it."""
        with self._joined_or_new() as tx:
            tx.delete(key)

    # -- once

    def process_once(
        self, event_id: str, work: Callable[[], Any], *, ttl: Duration | None = None
    ) -> Any:
        """Run ``work`` unless that was done for ``event_id``; returns its stored or new result.

        It runs in a transaction of its own: what it does with this context takes effect with
        the result. If it fails, nothing has happened and it may be tried again. The result
        must be plain data and is returned as it is stored: a tuple as a list. Callers at the
        same time share one run; those of several processes may both run, but only one takes
        effect, and both get its result.
        """
        ttl_ms = self._ttl_ms if ttl is None else option_ms("ttl", ttl)
        function(work, "the work")
        if not text(event_id, "an event's id") or not 0 < ttl_ms <= self._ttl_ms:
            raise InvalidInput("an event needs an id, and a ttl no longer than the context's")
        lock, callers = self._running.setdefault(event_id, (runtime.Mutex(), []))
        callers.append(None)
        try:
            with lock:
                return self._process(event_id, work, ttl_ms)
        finally:
            callers.pop()
            if not callers:
                self._running.pop(event_id, None)

    def _process(self, event_id: str, work: Callable[[], Any], ttl_ms: int) -> Any:
        if (known := self._result(event_id)) is not None:
            return known[0]
        try:
            with self.begin() as tx:
                tx.load(ONCE, event_id)  # so that only one of several takes effect
                content = pack_result(runtime.invoke(work), now_ms() + ttl_ms)
                tx.store(ONCE, event_id, content)
            return result_in(content)
        except TransactionAborted:
            if (known := self._result(event_id)) is None:
                raise
            return known[0]

    def _result(self, event_id: str) -> tuple[Any] | None:
        entry = self._ledger.load(ONCE, text(event_id, "an event's id"))
        return fresh_result(entry, now_ms())

    def is_processed(self, event_id: str) -> bool:
        """Whether `process_once` has a result for it."""
        return self._result(event_id) is not None

    # -- outbox

    def emit(self, value: Any, *, topic: str | None = None, key: Key = None) -> None:
        """Put an event into the outbox; within a transaction, with it."""
        if topic is None and self._deliver is None:
            raise InvalidInput("an event needs a topic, unless the context has 'deliver'")
        if topic is not None:
            text(topic, "a topic's name")
        with self._joined_or_new() as tx:
            tx.emit(value, topic=topic, key=key)

    def pending(self) -> list[OutboxEvent]:
        """The events that wait to be delivered, in order."""
        entries = waiting(self._ledger.scan(STATE))
        return [unpack_event(entry.content or b"") for _, entry in entries]

    def flush(self) -> int:
        """Deliver what waits, in order; returns how many.

        To topics exactly once. ``deliver`` is called at least once per event: it stops at the first
        that fails, which stays with all after it, and raises.
        """
        with self._flushing:
            keys = [key for key, _ in waiting(self._ledger.scan(STATE))]
            if self._deliver is not None:
                self._hand_over(keys, self._deliver)
                return len(keys)
            for at in range(0, len(keys), _FLUSHED_TOGETHER):
                self._publish(keys[at : at + _FLUSHED_TOGETHER])
            return len(keys)

    def _publish(self, keys: list[str]) -> None:
        with self.begin() as tx:
            for key in keys:
                content = tx.load(STATE, key)
                if content is None:
                    continue  # another process was faster
                event = unpack_event(content)
                if event.topic is None:
                    raise InvalidInput("an event without a topic needs the context's 'deliver'")
                tx.produce(event.topic, event.value, key=event.key)
                tx.store(STATE, key, None)

    def _hand_over(self, keys: list[str], deliver: Callable[[OutboxEvent], Any]) -> None:
        for key in keys:
            entry = self._ledger.load(STATE, key)
            if entry.content is not None:
                runtime.invoke(deliver, unpack_event(entry.content))
                with self.begin() as tx:
                    tx.store(STATE, key, None)

    # -- checkpoints

    def epoch(self) -> int:
        """The last barrier that was passed; 0 before the first."""
        entry = self._ledger.load(STATE, EPOCH_KEY)
        return 0 if entry.content is None else int(unpack(entry.content))

    def on_barrier(self, epoch: int) -> bool:
        """Everything up to here belongs to ``epoch``: deliver the outbox, take a checkpoint.

        False for an epoch that has already passed: a barrier may be sent again.
        """
        whole(epoch, "the epoch", 0)
        with self._barrier:
            if epoch <= self.epoch():
                return False
            self.flush()
            self._save(epoch)
            return True

    def checkpoint(self) -> Checkpoint:
        """Save everything as it is now, durably, and return it; see `restore`."""
        return self._save(None)

    def _save(self, epoch: int | None) -> Checkpoint:
        found = self._snapshot(self.epoch() if epoch is None else epoch)
        with self.begin() as tx:
            tx.store(STATE, CHECKPOINT_KEY, pack(found))
            tx.store(STATE, EPOCH_KEY, pack(found.epoch))
        return found

    def _snapshot(self, epoch: int) -> Checkpoint:
        entries = self._ledger.scan(STATE)
        results = self._ledger.scan(ONCE)
        return Checkpoint(
            epoch,
            {key: unpack(entry.content or b"") for key, entry in states(entries).items()},
            {key: unpack(entry.content or b"") for key, entry in results.items()},
            tuple(unpack_event(entry.content or b"") for _, entry in waiting(entries)),
        )

    def restore(self, checkpoint: Checkpoint | None = None) -> Checkpoint:
        """Go back to a checkpoint, or to the last one that was taken; all or nothing."""
        found = checkpoint or self._last()
        entries, results = self._ledger.scan(STATE), self._ledger.scan(ONCE)
        with self.begin() as tx:
            for gone in states(entries).keys() - found.state.keys():
                tx.delete(gone)
            for key, value in found.state.items():
                tx.put(key, value)
            for gone in results.keys() - found.processed.keys():
                tx.store(ONCE, gone, None)
            for event_id, kept in found.processed.items():
                tx.store(ONCE, event_id, pack(kept))
            for key, _ in waiting(entries):
                tx.store(STATE, key, None)
            for number, event in enumerate(found.outbox):
                tx.store(STATE, outbox_key(f"restored-{number:09}"), pack(event))
            tx.store(STATE, EPOCH_KEY, pack(found.epoch))
        return found

    def _last(self) -> Checkpoint:
        entry = self._ledger.load(STATE, CHECKPOINT_KEY)
        if entry.content is None:
            raise InvalidInput("there is no checkpoint to restore: take one first")
        return unpack_checkpoint(entry.content)

    # -- ending

    def close(self) -> None:
        """End the connection, unless it belongs to a client."""
        self._ledger.close()
