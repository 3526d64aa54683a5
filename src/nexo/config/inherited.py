"""Variables of the server that the existing TypeScript client was made for (SPEC R2).

Each has its effect here, under its own name or as another of our settings, or is named in a
warning. None stops the start by being set.
"""

from __future__ import annotations

from collections.abc import Mapping

RENAMED = {
    "QUEUE_VISIBILITY_MS": "queue_visibility_ms",
    "STREAM_DEFAULT_RETENTION_AGE_MS": "retention_ms",
    "STREAM_DEFAULT_RETENTION_BYTES": "retention_bytes",
    "STREAM_MAX_SEGMENT_SIZE": "segment_bytes",
}
"""Settings that have another variable here, which goes first if both are given."""
SECONDS = {
    "PUBSUB_DEFAULT_RETAINED_TTL_SECS": "retained_ttl_ms",
    "STORE_TTL_SECS": "classic_ttl_ms",
}
"""Settings in milliseconds whose variable there is in seconds."""
_LOG_LEVELS = {"warn": "warning", "trace": "debug", "off": "error"}
_EXPIRES = "what expires is removed when it is due, not at intervals"
_SYNCS = "writes are synced before they are acknowledged, or within STREAM_DEFAULT_FLUSH_MS"
_MEMORY = "records are read from files, which the system caches"
_WITHOUT_EFFECT = {
    "CHANNEL_CAPACITY_SOCKET_WRITE": "see NEXO_WRITE_BUFFER_BYTES",
    "PUBSUB_CLEANUP_INTERVAL_SECS": _EXPIRES,
    "PUBSUB_RETAINED_FLUSH_MS": _SYNCS,
    "QUEUE_DEFAULT_FLUSH_MS": _SYNCS,
    "NEXO_QUEUE_DEFAULT_FLUSH_MS": _SYNCS,
    "QUEUE_WRITER_BATCH_SIZE": _SYNCS,
    "STORE_CLEANUP_INTERVAL_SECS": _EXPIRES,
    "STREAM_EVICTION_INTERVAL_MS": _MEMORY,
    "STREAM_RAM_HARD_LIMIT": _MEMORY,
    "STREAM_RAM_SOFT_LIMIT": _MEMORY,
}
KNOWN = RENAMED.keys() | SECONDS.keys() | _WITHOUT_EFFECT.keys()


def translated(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what has no effect here, log levels by our names."""
    left = {key: value for key, value in environ.items() if key not in _WITHOUT_EFFECT}
    if (level := left.get("NEXO_LOG")) is not None:
        if _is_filter(level):
            del left["NEXO_LOG"]
        else:
            left["NEXO_LOG"] = _LOG_LEVELS.get(level.lower(), level)
    return left


def warnings(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that has no effect here."""
    found = [
        f"the environment variable {key} has no effect here: {why}"
        for key, why in _WITHOUT_EFFECT.items()
        if key in environ
    ]
    if _is_filter(level := environ.get("NEXO_LOG", "")):
        found.append(
            f"NEXO_LOG={level} has no effect here: name one level for all, "
            "such as info, in place of a filter"
        )
    return found


def _is_filter(level: str) -> bool:
    return "=" in level or "," in level
