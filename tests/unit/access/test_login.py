"""Users, credentials and their changes while a server runs (SPEC A10)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nexo import limits
from nexo.access.attempts import PER_ADDRESS, PER_USER, Attempts
from nexo.access.grants import Action, Extent, parse_grant
from nexo.access.login import INTERNAL, Identity, Logins
from nexo.access.users import User, UsersFile, parse_users, password_matches
from nexo.errors import (
    AlreadyExists,
    ConfigError,
    InvalidInput,
    LockedOut,
    NexoError,
    NotFound,
    Unauthenticated,
)
from nexo.model import Broker

PASSWORD = "correct horse"
READ_ALL = parse_grant("*:read:*")
WRITE_ALL = parse_grant("*:write:*")


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    file = UsersFile(tmp_path / "users.json")
    file.add("ana", PASSWORD, [READ_ALL, WRITE_ALL])
    return file


class Running:
    """Logins whose file is looked at anew with every call."""

    def __init__(self, file: UsersFile) -> None:
        self.logins = Logins(file.path)
        self.reread()

    def reread(self) -> None:
        self.logins.refresh()

    def login(self, name: str, password: str) -> Identity:
        stored = self.logins.stored_password(name)
        if not password_matches(password, stored):
            raise Unauthenticated
        return self.logins.verified(name, password, stored)


def may(identity: Identity, action: Action) -> bool:
    return identity.allows(Broker.STORE, action, Extent.NAME, "k")


def test_nothing_secret_is_in_the_file_and_only_its_owner_reads_it(users: UsersFile) -> None:
    token = users.add_token("ana", "laptop")
    text = users.path.read_text()
    assert PASSWORD not in text
    assert token not in text
    assert stat.S_IMODE(users.path.stat().st_mode) == 0o600


def test_a_password_is_verified_once_and_then_known(users: UsersFile) -> None:
    running = Running(users)
    assert running.logins.known("ana", PASSWORD) is None
    identity = running.login("ana", PASSWORD)
    assert running.logins.known("ana", PASSWORD) is identity
    assert running.logins.known("ana", "wrong one") is None


@pytest.mark.parametrize(("name", "password"), [("ana", "wrong one"), ("bob", PASSWORD)])
def test_a_wrong_password_and_an_unknown_user_fail_alike(
    users: UsersFile, name: str, password: str
) -> None:
    with pytest.raises(Unauthenticated):
        Running(users).login(name, password)


def test_a_token_logs_in_until_it_is_revoked(users: UsersFile) -> None:
    token = users.add_token("ana", "laptop")
    running = Running(users)
    identity = running.logins.by_token(token)
    assert may(identity, Action.READ)
    users.revoke_token("ana", "laptop")
    running.reread()
    assert not identity.valid
    with pytest.raises(Unauthenticated):
        running.logins.by_token(token)


def test_a_new_password_ends_identities_of_the_old_one_only(users: UsersFile) -> None:
    token = users.add_token("ana", "laptop")
    running = Running(users)
    by_password, by_token = running.login("ana", PASSWORD), running.logins.by_token(token)
    users.set_password("ana", "another horse")
    running.reread()
    assert not by_password.valid
    assert by_token.valid
    assert running.logins.known("ana", PASSWORD) is None


def test_a_permission_taken_away_ends_the_identity_and_one_added_counts(users: UsersFile) -> None:
    running = Running(users)
    identity = running.login("ana", PASSWORD)
    assert not may(identity, Action.ADMIN)
    users.set_grants("ana", [READ_ALL, WRITE_ALL, parse_grant("*:admin:*")])
    running.reread()
    assert identity.valid
    assert may(identity, Action.ADMIN)
    users.set_grants("ana", [READ_ALL])
    running.reread()
    assert not identity.valid


def test_a_removed_user_is_gone(users: UsersFile) -> None:
    running = Running(users)
    identity = running.login("ana", PASSWORD)
    users.remove("ana")
    running.reread()
    assert not identity.valid
    with pytest.raises(Unauthenticated):
        running.logins.linked("ana")


def test_a_broken_file_leaves_the_users_as_they_were(users: UsersFile) -> None:
    running = Running(users)
    identity = running.login("ana", PASSWORD)
    users.path.write_text("[{]")
    running.reread()
    assert identity.valid
    with pytest.raises(ConfigError, match="not a users file"):
        users.load()


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[1]", '[{"name": "a", "admin": true}]', '[{"name": ""}]', '[{"name": "../a"}]',
        '[{"name": "a", "password": "plain text"}]', '[{"name": "a", "grants": ["all"]}]',
        '[{"name": "a"}, {"name": "a"}]', "\udcff",
    ],
)  # fmt: skip
def test_a_users_file_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_users(text.encode("utf-8", "surrogateescape"))


def test_changes_that_make_no_sense_are_refused(users: UsersFile) -> None:
    with pytest.raises(AlreadyExists):
        users.add("ana", PASSWORD, [])
    with pytest.raises(NotFound):
        users.remove("bob")
    with pytest.raises(NotFound):
        users.revoke_token("ana", "laptop")
    with pytest.raises(InvalidInput, match="at least 8"):
        users.add("bob", "short", [])
    assert list(users.load()) == ["ana"]


def test_the_file_is_not_left_half_written(users: UsersFile) -> None:
    inode = users.path.stat().st_ino
    users.add("bob", PASSWORD, [])
    assert users.path.stat().st_ino != inode
    assert not os.path.exists(users.path.with_suffix(".new"))  # noqa: PTH110


class TestAttempts:
    def test_a_user_is_locked_after_some_failures_and_free_again_later(self) -> None:
        attempts = Attempts()
        for _ in range(PER_USER):
            assert attempts.locked("1.2.3.4", "ana", 0) is None
            attempts.failed("1.2.3.4", "ana", 0)
        assert isinstance(attempts.locked("1.2.3.4", "ana", limits.LOCKED_OUT_MS - 1), LockedOut)
        assert attempts.locked("1.2.3.4", "ana", limits.LOCKED_OUT_MS) is None

    def test_others_at_the_same_address_and_elsewhere_are_not_locked_out(self) -> None:
        attempts = Attempts()
        for _ in range(PER_USER):
            attempts.failed("1.2.3.4", "ana", 0)
        assert attempts.locked("1.2.3.4", "bob", 0) is None
        assert attempts.locked("5.6.7.8", "ana", 0) is None

    def test_an_address_that_tries_many_users_is_locked(self) -> None:
        attempts = Attempts()
        for number in range(PER_ADDRESS):
            attempts.failed("1.2.3.4", f"user{number}", 0)
        assert isinstance(attempts.locked("1.2.3.4", "ana", 1), LockedOut)

    def test_what_another_process_reports_counts(self) -> None:
        here, there = Attempts(), Attempts()
        for _ in range(PER_USER):
            here.heard(there.failed("1.2.3.4", "ana", 0), 0)
        assert here.locked("1.2.3.4", "bob", 1) is None
        assert isinstance(here.locked("1.2.3.4", "ana", 1), LockedOut)

    def test_a_flood_is_not_reported_without_end(self) -> None:
        attempts = Attempts()
        reports = [attempts.failed("1.2.3.4", f"user{number}", 0) for number in range(1_000)]
        assert sum(map(bool, reports)) == PER_ADDRESS

    def test_memory_is_bounded_under_a_flood(self) -> None:
        attempts = Attempts()
        for number in range(50_000):
            attempts.failed(f"10.0.{number // 256}.{number % 256}", "ana", number)
        assert len(attempts._failures) <= 10_001


def test_decisions_are_remembered_within_bounds() -> None:
    """G7: a user filled a broker by being refused for names of 10 MiB."""
    identity = Identity(User("ana"), None)
    for name in ("x" * 10_000 + str(number) for number in range(100)):
        assert not identity.allows(Broker.STORE, Action.READ, Extent.NAME, name)
    assert not identity._decisions
    for number in range(3 * limits.DECISIONS):
        identity.allows(Broker.STORE, Action.READ, Extent.NAME, str(number))
        assert len(identity._decisions) <= limits.DECISIONS


def test_nobody_can_have_the_name_of_the_servers_own_processes(users: UsersFile) -> None:
    """G9: the internal identity went to a user of that name."""
    with pytest.raises(NexoError):
        users.add(INTERNAL.name, PASSWORD, [])
    users.add("nexo", PASSWORD, [])
    running = Running(users)
    internal, user = running.logins.linked(None), running.logins.linked("nexo")
    assert internal.user is INTERNAL
    assert not may(user, Action.READ)


def test_a_change_of_the_users_is_durable(
    users: UsersFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15: a rename is durable once its folder is synced."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    users.add("bob", PASSWORD, [])
    assert synced == ["users.new", users.path.parent.name]
