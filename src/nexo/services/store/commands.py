"""The store's commands: one row each, read by the service and by every dialect.

`nexo.services.store.service.StoreService.run` does for all what a row says: it checks permission,
calls the engine, wakes who waits for a lease of a key that was changed, and plans expiry.
A command is named as its request in `nexo.protocol.ops`, and takes the arguments of its engine
method by name, without the time. Plain gets and sets have methods of their own, which are quicker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from nexo.access.grants import Action
from nexo.access.permit import ADMIN, READ, WRITE

KeysIn: TypeAlias = Literal["key", "keys", "values", "prefix", "all"]
"""Which argument names the keys: one key, several, those of a mapping, all that begin with it; or
all there are."""
GrowsWith: TypeAlias = Literal["one", "arguments", "value", "page", "everything"]
"""What the time grows with: nothing, the size of the arguments, that of the value under the key, a
page's limit, or all keys."""


class StoreCommand(NamedTuple):
    """One command."""

    name: str
    actions: Sequence[Action]
    """Any of them permits it, on each of its keys."""
    keys: KeysIn
    method: str
    """Of the engine."""
    work: GrowsWith
    expires: bool = False
    """Whether it may give a key a due time."""
    blocks: bool = False
    """Whether it may wait: the service has a method of its own for it."""

    @property
    def changes(self) -> bool:
        """Whether it changes keys."""
        return self.actions is not READ


_ROWS = (
    StoreCommand("KEY_SET", WRITE, "key", "set", "arguments", expires=True),
    StoreCommand("KEY_DELETE", WRITE, "keys", "delete", "arguments"),
    StoreCommand("KEY_DELETE_IF", WRITE, "key", "delete_if", "arguments"),
    StoreCommand("KEY_EXISTS", READ, "keys", "exists", "arguments"),
    StoreCommand("KEY_MGET", READ, "keys", "mget", "arguments"),
    StoreCommand("KEY_MSET", WRITE, "values", "mset", "arguments", expires=True),
    StoreCommand("KEY_INCR", WRITE, "key", "incr", "one", expires=True),
    StoreCommand("KEY_GETDEL", WRITE, "key", "getdel", "one"),
    StoreCommand("KEY_EXPIRE", WRITE, "key", "expire", "one", expires=True),
    StoreCommand("KEY_PERSIST", WRITE, "key", "persist", "one"),
    StoreCommand("KEY_INSPECT", READ, "key", "inspect", "one"),
    StoreCommand("KEY_SCAN", READ, "prefix", "scan", "page"),
    StoreCommand("STORE_CLEAR", ADMIN, "all", "clear", "everything"),
    StoreCommand("LEASE_TAKE", WRITE, "key", "leases.take", "value", expires=True, blocks=True),
    StoreCommand("LEASE_RENEW", WRITE, "key", "leases.renew", "one", expires=True),
    StoreCommand("LEASE_RELEASE", WRITE, "key", "leases.release", "one"),
    StoreCommand("RATE_BUCKET", WRITE, "key", "rates.bucket", "one", expires=True),
    StoreCommand("RATE_WINDOW", WRITE, "key", "rates.window", "one", expires=True),
    StoreCommand("FIELDS_SET", WRITE, "key", "maps.set", "arguments"),
    StoreCommand("FIELDS_GET", READ, "key", "maps.get", "arguments"),
    StoreCommand("FIELDS_ALL", READ, "key", "maps.all", "value"),
    StoreCommand("FIELDS_DELETE", WRITE, "key", "maps.delete", "arguments"),
    StoreCommand("FIELDS_INCR", WRITE, "key", "maps.incr", "one"),
    StoreCommand("FIELDS_COUNT", READ, "key", "maps.length", "one"),
    StoreCommand("LIST_PUSH", WRITE, "key", "lists.push", "arguments"),
    StoreCommand("LIST_POP", WRITE, "key", "lists.pop", "arguments"),
    StoreCommand("LIST_RANGE", READ, "key", "lists.range", "value"),
    StoreCommand("LIST_REPLACE", WRITE, "key", "lists.replace", "value"),
    StoreCommand("LIST_TRIM", WRITE, "key", "lists.trim", "value"),
    StoreCommand("LIST_REMOVE", WRITE, "key", "lists.remove", "value"),
    StoreCommand("LIST_LENGTH", READ, "key", "lists.length", "one"),
    StoreCommand("SET_ADD", WRITE, "key", "sets.add", "arguments"),
    StoreCommand("SET_REMOVE", WRITE, "key", "sets.remove", "arguments"),
    StoreCommand("SET_POP", WRITE, "key", "sets.pop", "arguments"),
    StoreCommand("SET_CONTAINS", READ, "key", "sets.contains", "arguments"),
    StoreCommand("SET_MEMBERS", READ, "key", "sets.members", "value"),
    StoreCommand("SET_SIZE", READ, "key", "sets.length", "one"),
)
COMMANDS: Mapping[str, StoreCommand] = {row.name: row for row in _ROWS}
