"""A model of leases and one log, small enough to try every order of every step.

Two servers and a store. Each call to the store is a step of its own, and between any two steps of
a server any number of the other's may happen: that is what a pause is. A reply may be lost, and a
lease's time may be over at any moment. What is deleted, and which renewal counts, is decided by
the rules that the code itself uses (`nexo.replication.fence`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from nexo.replication import fence
from nexo.replication.objects import log_key, number_of

MINE = 1_000
"""Above all terms: of a lease whose server has not begun its term."""
Objects: TypeAlias = frozenset[tuple[int, int]]
"""Numbers, each with the term whose server put the object there."""


@dataclass(frozen=True)
class Rules:
    """Which mends are in; the tests take them out."""

    keeps_leases: bool = True
    """Leases that fence are never deleted."""
    proves: bool = True
    """A renewal counts only by `fence.renewal_counts`."""
    keeps_claims: bool = True
    """Claims that fence are never deleted."""
    alone_lapses: bool = True
    """A leader that knows of no standby lapses too."""


class Server(NamedTuple):
    """One server. Fields that do not matter in a role are at rest, so that equal states meet."""

    term: int = 0
    """The term it leads in; 0 for a standby."""
    first: int = 0
    newest: int = 0
    """Its first and newest lease."""
    timely: bool = False
    """Its time, counted from its newest lease, is not over."""
    fresh: bool = False
    """Nor is the time that counts from when it asked for the next one."""
    asked: str = ""
    """Where a renewal is: ``put``, ``made``, ``mine``, ``lapsed``."""
    seen: int = -1
    """Of a standby: the newest lease, whose time was over."""
    taken: bool = False
    """It created a lease after that, and has not looked yet whether it is the newest."""
    claims: bool = False
    """It has the lease, and not the log yet."""
    claimed: int = 0
    """The number of its claim."""
    sure: bool = True
    """It has looked whether its claim is the log's end."""
    number: int = -1
    """Its next log object; -1 before it has looked for the log's end."""
    putting: bool = False
    forgets: tuple[int, ...] = ()
    collects: tuple[int, ...] = ()
    """What it decided to delete and has not deleted yet."""


class State(NamedTuple):
    """Everything at one moment."""

    leases: Objects
    log: Objects
    claims: Objects
    """Every claim with which a server led the log."""
    bases: tuple[int, ...]
    owner: int
    """The newest term that anybody began."""
    servers: tuple[Server, Server]
    renewals: int
    takeovers: int
    puts: int
    bases_left: int
    deletions: int
    lost_replies: int


class Broken(Exception):
    """An invariant does not hold."""


def begin(
    *, renewals: int = 0, takeovers: int = 1, puts: int = 0, made: int = 0, deletions: int = 0,
    lost_replies: int = 0,
) -> State:  # fmt: skip
    """A leader with its first lease and its claim, and a standby; what may happen so often."""
    leader = Server(term=1, timely=True, number=1)
    one = frozenset({(0, 1)})
    servers = (leader, Server())
    return State(
        one, one, one, (), 1, servers, renewals, takeovers, puts, made, deletions, lost_replies
    )


def may_acknowledge(server: Server, rules: Rules) -> bool:
    """Whether a server answers clients, in whatever mode."""
    if not server.term or server.claims:
        return False
    return server.timely or not rules.alone_lapses


def check(state: State, rules: Rules) -> None:
    """Nobody but the owner of the newest term acknowledges."""
    for server in state.servers:
        if may_acknowledge(server, rules) and server.term != state.owner:
            raise Broken(f"term {server.term} acknowledges, though {state.owner} has begun")


class Step(NamedTuple):
    name: str
    state: State


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """All that may happen next."""
    for at in range(len(state.servers)):
        for name, after, mine in _moves(state, at, rules):
            both = (mine, state.servers[1]) if at == 0 else (state.servers[0], mine)
            yield Step(f"{'AB'[at]} {name}", after._replace(servers=both))


Move: TypeAlias = tuple[str, State, Server]


def _moves(state: State, at: int, rules: Rules) -> Iterator[Move]:
    server = state.servers[at]
    if server.fresh and not server.timely:
        yield "is paused until its lease comes too late", state, server._replace(fresh=False)
    yield from _leader(state, server, rules) if server.term else _standby(state, at, rules)


def _term(objects: Objects, number: int) -> int:
    return next((term for each, term in objects if each == number), 0)


def _leader(state: State, server: Server, rules: Rules) -> Iterator[Move]:
    if server.timely:
        yield "is paused until its time is over", state, server._replace(timely=False)
    if server.claims:
        yield from _claim(state, server, rules)
    yield from _renew(state, server, rules)
    yield from _delete_leases(state, server, rules)
    if not server.claims:
        yield from _put(state, server)
        yield from _collect(state, server, rules)


def _is_over(leader: Server, number: int, term: int) -> bool:
    """Whether a standby may have waited long enough for a lease to be renewed.

    It waits for longer, from later on, than the time that its leader counts.
    """
    if term >= MINE:
        return not leader.fresh
    if leader.term != term:
        return True
    return not (leader.timely if number == leader.newest else leader.timely or leader.fresh)


def _standby(state: State, at: int, rules: Rules) -> Iterator[Move]:
    server, other = state.servers[at], state.servers[1 - at]
    newest, of = max(state.leases)
    if server.taken:
        number = server.seen + 1
        if rules.proves and newest != number:
            yield "sees a newer lease", state, Server()
            return
        term = state.owner + 1
        leases = state.leases - {(number, MINE + at)} | {(number, term)}
        mine = Server(term, number, number, timely=server.fresh, claims=True, number=-1)
        yield f"leads with lease {number}", state._replace(leases=leases, owner=term), mine
        return
    if server.seen != newest and _is_over(other, newest, of):
        yield f"sees lease {newest} unrenewed", state, server._replace(seen=newest)
    if server.seen >= 0 and state.takeovers:
        number = server.seen + 1
        if _term(state.leases, number):
            yield f"meets lease {number}", state, server._replace(seen=-1)
        else:
            after = state._replace(
                leases=state.leases | {(number, MINE + at)}, takeovers=state.takeovers - 1
            )
            yield f"takes lease {number}", after, server._replace(taken=True, fresh=True)


def _claim(state: State, server: Server, rules: Rules) -> Iterator[Move]:
    end = max(number for number, _ in state.log) + 1
    if not server.sure:
        if rules.proves and end > server.number:
            yield "sees a newer object", state, server._replace(sure=True, number=-1)
        else:
            claims = state.claims | {(server.claimed, server.term)}
            mine = server._replace(sure=True, claims=False)
            yield "leads the log", state._replace(claims=claims), mine
    elif server.number < 0:
        if server.timely:
            yield f"reads the log to {end}", state, server._replace(number=end)
    elif _term(state.log, server.number):
        yield "meets an object and reads on", state, server._replace(number=-1)
    else:
        claim = (server.number, server.term)
        mine = server._replace(sure=False, claimed=claim[0], number=claim[0] + 1)
        yield f"claims with {server.number}", state._replace(log=state.log | {claim}), mine


def _renew(state: State, server: Server, rules: Rules) -> Iterator[Move]:
    number = server.newest + 1
    match server.asked:
        case "":
            if state.renewals:
                after = state._replace(renewals=state.renewals - 1)
                yield "asks for a renewal", after, server._replace(asked="put", fresh=True)
        case "put":
            yield from _put_lease(state, server, number)
        case "made" if not rules.proves:
            yield _counted(state, server, number, counts=True)
        case "made":
            if _term(state.leases, server.newest) == server.term:
                yield "finds its last lease", state, server._replace(asked="mine")
            else:
                yield "misses its last lease", state, Server()
        case "mine" if not server.timely:
            yield "knows that its time was over", state, server._replace(asked="lapsed")
        case "mine":
            yield _counted(state, server, number, counts=_counts(lapsed=False, is_newest=False))
        case "lapsed":
            is_newest = max(each for each, _ in state.leases) == number
            yield _counted(state, server, number, counts=_counts(lapsed=True, is_newest=is_newest))


def _counts(*, lapsed: bool, is_newest: bool) -> bool:
    return fence.renewal_counts(
        created=True, previous_is_mine=True, lapsed=lapsed, is_newest=is_newest
    )


def _counted(state: State, server: Server, number: int, *, counts: bool) -> Move:
    if not counts:
        return "sees a newer lease", state, Server()
    mine = server._replace(newest=number, timely=server.fresh, fresh=False, asked="")
    return f"counts lease {number}", state, mine


def _put_lease(state: State, server: Server, number: int) -> Iterator[Move]:
    found = _term(state.leases, number)
    if found not in (0, server.term):
        yield f"meets lease {number} of another", state, Server()
        return
    after = state._replace(leases=state.leases | {(number, server.term)})
    yield f"creates lease {number}", after, server._replace(asked="made")
    if not found and state.lost_replies:
        after = after._replace(lost_replies=state.lost_replies - 1)
        yield f"creates lease {number} and does not know", after, server


def _delete_leases(state: State, server: Server, rules: Rules) -> Iterator[Move]:
    if server.forgets:
        left = frozenset(each for each in state.leases if each[0] not in server.forgets)
        mine = server._replace(forgets=())
        yield f"deletes leases {server.forgets}", state._replace(leases=left), mine
        return
    numbers = [number for number, _ in state.leases]
    if rules.keeps_leases:
        gone = fence.needless_leases(
            numbers, server.first, server.newest, lambda number: str(_term(state.leases, number))
        )
    else:
        gone = [number for number in numbers if number < server.newest - fence.LEASES_KEPT]
    if gone and state.deletions:
        after = state._replace(deletions=state.deletions - 1)
        yield "decides which leases to delete", after, server._replace(forgets=tuple(sorted(gone)))


def _put(state: State, server: Server) -> Iterator[Move]:
    if not server.putting:
        if state.puts:
            after = state._replace(puts=state.puts - 1)
            yield "puts an object", after, server._replace(putting=True)
        return
    found = _term(state.log, server.number)
    if found not in (0, server.term):
        yield f"meets object {server.number} of another", state, Server()
        return
    after = state._replace(log=state.log | {(server.number, server.term)})
    if any(server.claimed < number <= server.number for number, _ in state.claims):
        raise Broken(f"object {server.number} of term {server.term} is confirmed and lost")
    yield (
        f"has object {server.number} confirmed",
        after,
        server._replace(putting=False, number=server.number + 1),
    )
    if not found and state.lost_replies:
        yield (
            f"puts object {server.number} and does not know",
            after._replace(lost_replies=state.lost_replies - 1),
            server,
        )


def _collect(state: State, server: Server, rules: Rules) -> Iterator[Move]:
    if server.collects:
        left = frozenset(each for each in state.log if each[0] not in server.collects)
        mine = server._replace(collects=())
        yield f"deletes objects {server.collects}", state._replace(log=left), mine
        return
    if state.bases_left and server.number not in state.bases:
        made = (*state.bases, server.number)[-2:]
        yield (
            f"makes a base at {server.number}",
            state._replace(bases=made, bases_left=state.bases_left - 1),
            server,
        )
    if len(state.bases) == 2 and state.deletions:
        gone = _needless_log(state, rules)
        if gone:
            after = state._replace(deletions=state.deletions - 1)
            yield "decides what to collect", after, server._replace(collects=gone)


def _needless_log(state: State, rules: Rules) -> tuple[int, ...]:
    numbers = sorted(number for number, _ in state.log)[:-1]
    below = [log_key(number) for number in numbers if number < min(state.bases)]
    fencing: set[str] = set()
    if rules.keeps_claims:
        term_of: Callable[[str], str] = lambda key: str(_term(state.log, number_of(key)))  # noqa: E731
        fencing = set(fence.first_of_each(below, term_of))
    return tuple(number_of(key) for key in below if key not in fencing)


def explore(start: State, rules: Rules, most: int = 5_000_000) -> int:
    """Try every order; returns how many states there are. `Broken` says how it came about."""
    came: dict[State, Step | None] = {start: None}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        try:
            check(state, rules)
            for name, after in steps(state, rules):
                if after not in came:
                    came[after] = Step(name, state)
                    todo.append(after)
        except Broken as error:
            raise Broken(f"{error}:\n" + "\n".join(_story(came, state))) from None
        assert len(came) < most, "too many states"
    return len(came)


def _story(came: dict[State, Step | None], state: State) -> list[str]:
    story: list[str] = []
    while (step := came[state]) is not None:
        story.append(step.name)
        state = step.state
    return story[::-1]
