"""What every model of a broker may want to know of the servers."""

from __future__ import annotations

from typing import ClassVar


class Model:
    """What is known of one thing; each hook may be left out."""

    broker: ClassVar[str] = ""
    """Whose fate concerns it; of any broker if empty."""

    def server_stopped(self, *, clean: bool) -> None:
        """The broker has ended as it was asked to; nothing went wrong meanwhile if ``clean``."""

    def server_ended(self) -> None:
        """The broker's process is gone, in whatever way."""

    def server_started(self) -> None:
        """The broker serves again."""

    def power_lost(self, window_s: float) -> None:
        """What was acknowledged up to ``window_s`` ago may be gone, if it need not be synced."""

    def taken_over(self, since_s: float, *, lossy: bool) -> None:
        """Another machine goes on with what the broker had shipped.

        What was acknowledged before ``since_s`` is there; later only what is `replicated`. With
        ``lossy`` the bucket had lost objects, so that anything may be gone.
        """
