"""The users file: names, hashed secrets and permissions, as JSON that people may read.

Passwords and tokens are made, hashed and compared here, and never stored or logged in clear.

Written aside and renamed, mode 0600, so a server that rereads it never sees half of it.
Changes take a lock, so that concurrent commands lose none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from nexo.access import scram
from nexo.access.grants import Action, Extent, Grant, parse_grant
from nexo.errors import AlreadyExists, ConfigError, InvalidInput, NexoError, NotFound
from nexo.model import Broker, check_name
from nexo.storage.disk.files import replace_private

_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**14, 8, 1
_SALT_BYTES, _HASH_BYTES = 16, 32
_STORED = re.compile(rf"scrypt\$([0-9a-f]{{{2 * _SALT_BYTES}}})\$([0-9a-f]{{{2 * _HASH_BYTES}}})")
TOKEN_PREFIX = "nexo_"
SHORTEST_PASSWORD = 8


def hash_password(password: str) -> str:
    """A salted scrypt hash, with its salt, as one printable text."""
    if len(password) < SHORTEST_PASSWORD:
        raise InvalidInput(f"a password has at least {SHORTEST_PASSWORD} characters")
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def check_stored(stored: str) -> None:
    """Reject anything that `hash_password` cannot have made."""
    if not _STORED.fullmatch(stored):
        raise InvalidInput("a stored password is not a hash: set it with `nexo user passwd`")


def password_matches(password: str, stored: str) -> bool:
    """Whether ``password`` matches ``stored``. Slow on purpose."""
    found = _STORED.fullmatch(stored)
    if found is None:
        return False
    salt, digest = found.groups()
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)).hex(), digest)


NOBODYS = f"scrypt${'0' * 2 * _SALT_BYTES}${'0' * 2 * _HASH_BYTES}"
"""Compared when the user is unknown, so that timing reveals nothing."""


def _scrypt(password: str, salt: bytes) -> bytes:
    raw = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, dklen=_HASH_BYTES)


def new_token() -> str:
    """A token with enough entropy that a plain hash of it is safe."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class User:
    """One user; secrets are hashes."""

    name: str
    password: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    """Label to hash."""
    grants: tuple[Grant, ...] = ()
    scram: dict[str, str] = field(default_factory=dict)
    """Of the same password: mechanism to keys; see `nexo.access.scram`."""

    def allows(self, broker: Broker, action: Action, extent: Extent, name: str) -> bool:
        """Whether any grant covers the request."""
        return any(grant.allows(broker, action, extent, name) for grant in self.grants)

    def may_some(self, broker: Broker, actions: Iterable[Action]) -> bool:
        """Whether one of these actions is permitted for some names."""
        return any(grant.concerns(broker, act) for act in actions for grant in self.grants)

    @property
    def credentials(self) -> set[str]:
        """The hashes of all credentials of this user."""
        return {*self.tokens.values(), *([self.password] if self.password else [])}


class _Row(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A user as stored in the file."""

    name: str
    password: str | None = None
    tokens: dict[str, str] = {}
    grants: list[str] = []
    scram: dict[str, str] = {}


def _row(user: User) -> _Row:
    grants = [str(grant) for grant in user.grants]
    return _Row(user.name, user.password, user.tokens, grants, user.scram)


def _user(row: _Row) -> User:
    if row.password is not None:
        check_stored(row.password)
    scram.check_stored(row.scram)
    grants = tuple(parse_grant(text) for text in row.grants)
    return User(check_name(row.name, "user"), row.password, row.tokens, grants, row.scram)


def parse_users(raw: bytes) -> dict[str, User]:
    """The users in the bytes of a file; `InvalidInput` says what is wrong with them."""
    try:
        rows = msgspec.json.decode(raw, type=list[_Row])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(str(error)) from None
    users = {row.name: _user(row) for row in rows}
    if len(users) != len(rows):
        raise InvalidInput("a name occurs twice")
    return users


class UsersFile:
    """Reads and writes the file; every change is saved at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, User]:
        """All users by name; none if there is no file."""
        try:
            return parse_users(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from None
        except NexoError as error:
            raise ConfigError(f"{self.path} is not a users file: {error.message}") from None

    def add(self, name: str, password: str | None, grants: Iterable[Grant]) -> None:
        """Create a user."""
        hashed = hash_password(password) if password else None
        keys = scram.make_keys(password) if password else {}
        with self._changing() as users:
            if check_name(name, "user") in users:
                raise AlreadyExists(f"user {name!r} exists; change it with passwd, grant or token")
            users[name] = User(name, hashed, {}, tuple(grants), keys)

    def remove(self, name: str) -> None:
        """Delete a user."""
        with self._changing() as users:
            del users[self._get(users, name).name]

    def set_password(self, name: str, password: str) -> None:
        """Replace the password."""
        hashed, keys = hash_password(password), scram.make_keys(password)
        with self._changing() as users:
            users[name] = replace(self._get(users, name), password=hashed, scram=keys)

    def set_grants(self, name: str, grants: Iterable[Grant]) -> None:
        """Replace the permissions."""
        with self._changing() as users:
            users[name] = replace(self._get(users, name), grants=tuple(grants))

    def add_token(self, name: str, label: str) -> str:
        """Give the user a new token and return it; it cannot be shown again."""
        token = new_token()
        with self._changing() as users:
            user = self._get(users, name)
            if check_name(label, "token") in user.tokens:
                raise AlreadyExists(f"user {name!r} has a token {label!r}; revoke it first")
            tokens = user.tokens | {label: hash_token(token)}
            users[name] = replace(user, tokens=tokens)
        return token

    def revoke_token(self, name: str, label: str) -> None:
        with self._changing() as users:
            user = self._get(users, name)
            if label not in user.tokens:
                raise NotFound(f"user {name!r} has no token {label!r}")
            tokens = {key: hashed for key, hashed in user.tokens.items() if key != label}
            users[name] = replace(user, tokens=tokens)

    @staticmethod
    def _get(users: dict[str, User], name: str) -> User:
        if name not in users:
            raise NotFound(f"user {name!r} not found")
        return users[name]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        """The users, saved at the end unless an error is raised."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            users = self.load()
            yield users
            self._save(users)

    def _save(self, users: dict[str, User]) -> None:
        rows = [_row(user) for user in users.values()]
        text = msgspec.json.format(msgspec.json.encode(rows), indent=2)
        replace_private(self.path, text)
