"""Use cases that are commands of the engine on one key, each with the permission that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from nexo.access.grants import Action
from nexo.access.permit import READ, WRITE
from nexo.brokers.store.engine import StoreEngine
from nexo.services.connection import Connection

May: TypeAlias = Callable[[Connection, Sequence[Action], Iterable[str]], int]
"""Checks permission for a command on keys and counts it; returns the time."""
T = TypeVar("T")


class KeyCommands:
    """Each is called with the connection and the command's arguments, a dict that gets the time."""

    def __init__(self, store: StoreEngine, may: May, plan: Callable[[], None]) -> None:
        """``plan`` is called after a command that may have set a TTL."""
        reading, writing = partial(_permitted, may, READ), partial(_permitted, may, WRITE)
        expiring = partial(_expiring, may, plan)
        self.incr = expiring(store.incr)
        self.expire = expiring(store.expire)
        self.take_tokens = expiring(store.rates.bucket)
        self.count_in_window = expiring(store.rates.window)
        self.getdel = writing(store.getdel)
        self.delete_if = writing(store.delete_if)
        self.persist = writing(store.persist)
        self.inspect = reading(store.inspect)
        self.renew_lease = writing(store.leases.renew)
        self.map_set = writing(store.maps.set)
        self.map_get = reading(store.maps.get)
        self.map_all = reading(store.maps.all)
        self.map_delete = writing(store.maps.delete)
        self.map_incr = writing(store.maps.incr)
        self.map_length = reading(store.maps.length)
        self.list_push = writing(store.lists.push)
        self.list_pop = writing(store.lists.pop)
        self.list_range = reading(store.lists.range)
        self.list_replace = writing(store.lists.replace)
        self.list_trim = writing(store.lists.trim)
        self.list_remove = writing(store.lists.remove)
        self.list_length = reading(store.lists.length)
        self.set_add = writing(store.sets.add)
        self.set_remove = writing(store.sets.remove)
        self.set_pop = writing(store.sets.pop)
        self.set_contains = reading(store.sets.contains)
        self.set_members = reading(store.sets.members)
        self.set_length = reading(store.sets.length)


def _permitted(may: May, actions: Sequence[Action], command: Callable[..., T]) -> Callable[..., T]:
    def use_case(connection: Connection, given: dict[str, Any]) -> T:
        given["now_ms"] = may(connection, actions, (given["key"],))
        return command(**given)

    return use_case


def _expiring(may: May, plan: Callable[[], None], command: Callable[..., T]) -> Callable[..., T]:
    def use_case(connection: Connection, given: dict[str, Any]) -> T:
        given["now_ms"] = may(connection, WRITE, (given["key"],))
        result = command(**given)
        plan()
        return result

    return use_case
