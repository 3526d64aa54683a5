"""The page of Kafka's APIs, from the table that `ApiVersions` answers with."""

from __future__ import annotations

from nexo.dialects.kafka.format.apis import APIS, Api
from tools.docs_text import table

_KAFKA_4 = {
    0: "3-13", 1: "4-18", 2: "1-11", 3: "0-13", 8: "2-10", 9: "1-10", 10: "0-6", 11: "0-9",
    12: "0-4", 13: "0-5", 14: "0-5", 15: "0-6", 16: "0-5", 17: "0-1", 18: "0-4", 19: "2-7",
    20: "1-6", 21: "0-2", 22: "0-5", 23: "2-4", 24: "0-5", 25: "0-4", 26: "0-5", 28: "0-5",
    32: "1-4", 33: "0-2", 36: "0-2", 37: "0-3", 42: "0-2", 44: "0-1", 47: "0", 60: "0-2",
    68: "0-1", 69: "0-1", 29: "1-3", 30: "1-3", 31: "1-3", 35: "1-5",
    43: "0-2", 46: "0", 55: "0-2", 57: "0-2", 61: "0", 65: "0", 66: "0-2", 74: "0-1", 75: "0",
}  # fmt: skip
"""The versions of Kafka 4.x by key."""
_NOTES = {
    0: "acks 0, 1 and all; record format 2; one batch per partition and request",
    1: "no incremental sessions: every fetch names its partitions; only committed records come",
    3: "creates topics, if `KAFKA_AUTO_CREATE_TOPICS` is on",
    10: "groups and transactional ids; there is one broker",
    17: "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`",
    19: "any replication factor is accepted and comes to one copy",
    22: "a transactional producer asks again after a crash of the server, or if a stop met it with "
    "an open transaction, which was rolled back",
    23: "there is one leader ever",
    29: "`SECURITY_DISABLED`: permissions are grants of [users](../guide/security.md)",
    30: "`SECURITY_DISABLED`: `nexo user` grants permissions",
    31: "`SECURITY_DISABLED`: `nexo user` takes permissions back",
    35: "one folder",
    43: "every partition has its leader",
    46: "no partition moves",
    55: "the one broker leads itself",
    57: "refused: there are no features to switch on",
    61: "producers that the partition remembers",
    65: "transactional ids that the client may use",
    74: "topics and the broker",
    66: "transactional ids that the client may use",
    37: "groups read new partitions from their start, also with `auto.offset.reset=latest`",
    68: "patterns of topics without lookaround, as on Kafka, and without classes by name",
}
_ABSENT = [
    ("34, 45", "moving log folders and partitions", "there is one broker"),
    ("38-41", "delegation tokens", "[tokens](../guide/security.md) are logins like passwords"),
    ("48, 49", "client quotas", "limits are [settings](configuration.md)"),
    ("50, 51", "SCRAM credentials", "`nexo user passwd` makes them"),
    ("71, 72", "client telemetry", "the server counts by itself: [metrics](../howto/monitor.md)"),
    ("76-79, 83-86", "share groups (KIP-932)", "not yet; [shared groups](../guide/stream.md) of "
     "`client.stream` work that way"),
]  # fmt: skip


def page() -> str:
    """The page of APIs that are served, and that are not."""
    served = [_row(api) for _, api in sorted(APIS.items())]
    return f"""# Kafka's APIs

What works and what does not, API by API: this is the table that clients get as the answer to
`ApiVersions`, next to the versions of Kafka 4. Clients take the highest version that both sides
know. What was tried with which client is in the [ledger](kafka-compatibility.md), how to use them
in the [guide](../guide/kafka.md).

{table(("key", "API", "versions here", "in Kafka 4", "differs"), served)}
## Not served

A request for one of these, or for another version, is answered with `UNSUPPORTED_VERSION`.

{table(("key", "what", "instead"), _ABSENT)}"""


def _row(api: Api) -> tuple[str, str, str, str, str]:
    key = int(api.key)
    versions = str(api.low) if api.low == api.high else f"{api.low}-{api.high}"
    return str(key), _named(api.key.name), versions, _KAFKA_4.get(key, ""), _NOTES.get(key, "")


def _named(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
