"""Examples of requests and replies, made from their schemas with one set of sample values."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonSchema: TypeAlias = dict[str, Any]

_JOB = "000001a1df2fdf070000000000000000"
_TIME_MS = 1_767_225_600_000
"""The beginning of 2026."""
_BY_NAME: dict[str, Any] = {
    "address": "127.0.0.1", "client": "shop-42", "cron": "0 3 * * *", "dedup_key": "order-7",
    "error": "KeyError: 'to'", "group": "billing", "id": _JOB, "key": "greeting", "kind": "value",
    "lease": "7", "name": "nightly", "pattern": "news/#", "persistence": "file_sync",
    "query": "select count(*) from stream_messages",
    "queue": "emails", "reason": "too many retries", "stream": "orders", "topic": "news/today",
    "user": "ana", "version": "0.3.0",
}  # fmt: skip
"""Sample values by field name."""
_BY_TITLE: dict[str, dict[str, Any]] = {
    "Alert": {"kind": "dead-letters", "broker": "queue", "subject": "emails",
              "message": "3 dead letters", "group": ""},
    "Broker": {"name": "store", "up": True, "error": None},
    "Connection": {"name": "shop-42", "broker": "store"},
    "Group": {"name": "billing", "kind": "shared"},
    "Item": {"name": "apples"},
    "Job": {"error": None, "key": "ana", "reason": None, "state": "waiting"},
    "Queue": {"name": "emails"},
    "Record": {"key": "order-7"},
    "Request": {"op": "map_set"},
    "Stream": {"name": "orders"},
    "Table": {"name": "nexo.orders"},
}  # fmt: skip
"""The same for names that many types share, by a word in the type's name."""
_WHOLE: dict[str, Any] = {
    "NewValue": {"type": "text", "text": "hello"},
    "Option": {"name": "persistence", "title": "Durability", "help": "When a write is safe.",
               "kind": "choice", "unit": None, "default": "file_sync", "least": None, "most": None,
               "choices": ["file_async", "file_sync"], "usual": True, "fixed": False},
    "Value": {"type": "text", "text": "hello", "size_bytes": 5, "truncated": False},
}  # fmt: skip
_ALSO: dict[str, Any] = {
    "SeekAsk": {"to": "beginning"},
    "MakeAsk": {"options": {"cleanup": "compact"}},
    "OptionsAsk": {"options": {"max_retries": 3}},
}
"""Of requests: what they need besides the required fields to make sense."""


def request(schema: JsonSchema, known: dict[str, JsonSchema]) -> Any:
    """The least that a request may say."""
    return Maker(known, required_only=True).make(schema)


def reply(schema: JsonSchema, known: dict[str, JsonSchema]) -> Any:
    """A whole reply."""
    return Maker(known, required_only=False).make(schema)


class Maker:
    """Makes values that fit schemas; ``known`` are those that others refer to."""

    def __init__(self, known: dict[str, JsonSchema], *, required_only: bool) -> None:
        self._known = known
        self._required_only = required_only

    def make(self, schema: JsonSchema, name: str = "") -> Any:
        """A value for a field of this ``name``."""
        if "$ref" in schema:
            return self._referred(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            return self.make(schema["anyOf"][0], name)
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                kinds = schema.get("prefixItems") or [schema.get("items", {})]
                return [self.make(kind, name.removesuffix("s")) for kind in kinds]
        return _plain(schema, name)

    def _referred(self, title: str) -> Any:
        if title in _WHOLE:
            return _WHOLE[title]
        also = _ALSO.get(title, {}) if self._required_only else {}
        return self._object(self._known[title]) | also

    def _object(self, schema: JsonSchema) -> dict[str, Any]:
        fields = schema.get("properties", {})
        chosen = schema.get("required", []) if self._required_only else fields
        title = schema.get("title", "")
        own = next((_BY_TITLE[word] for word in _BY_TITLE if word in title), {})
        return {
            name: own[name] if name in own else self.make(field, name)
            for name, field in fields.items()
            if name in chosen
        }


def _plain(schema: JsonSchema, name: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer":
            moment = name.endswith("_ms") and name != "ttl_ms"
            return _TIME_MS if moment else int(name not in ("partition", "offset"))
        case "number":
            return 1.0
        case "boolean":
            return False
        case "string":
            return _BY_NAME.get(name, name or "text")
    return "hello" if name == "data" else None
