"""The buffer that connections are read to."""

from __future__ import annotations

from nexo import limits

READ_BYTES = 256 * 1024
"""The most that one connection may deliver per callback, for fairness between connections."""


class ReadBuffer:
    """One for all sessions of an event loop: a read and its callback are never interleaved with
    another session's.
    """

    __slots__ = ("before_login", "view")

    def __init__(self, size: int = READ_BYTES) -> None:
        self.view = memoryview(bytearray(size))
        self.before_login = self.view[: limits.BEFORE_LOGIN_BYTES]
        """For a client that has not logged in: what it sends behind its login is kept, so little
        of it is read.
        """
