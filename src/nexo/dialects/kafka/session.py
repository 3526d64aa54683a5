"""One connection of a Kafka client: what a request looks like, and which function runs it."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from nexo import limits
from nexo.access.scram import Exchange
from nexo.dialects.dialect import Origin
from nexo.dialects.kafka.cluster import refuse_version
from nexo.dialects.kafka.format.apis import APIS, UNKNOWN, Key
from nexo.dialects.kafka.format.codec import Message
from nexo.dialects.kafka.format.wire import I16, Input
from nexo.dialects.kafka.handlers import HANDLERS
from nexo.dialects.kafka.request import KafkaShared, Request
from nexo.dialects.pipelined import Pending, PipelinedSession
from nexo.errors import ProtocolError

_SIZE = Struct(">i")
_HEAD = Struct(">ihhi")
_BEFORE_LOGIN = frozenset({Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE})


class KafkaSession(PipelinedSession):
    """One connection."""

    def __init__(self, shared: KafkaShared, origin: Origin) -> None:
        super().__init__(shared, origin)
        self.shared = shared
        self.mechanism: str | None = None
        """How the client logs in, once that is agreed on."""
        self.exchange: Exchange | None = None
        """A login with SCRAM that has begun."""

    @property
    def advertised_address(self) -> tuple[str, int]:
        """Where clients are to connect to: what is configured, or where this one did connect."""
        given = self._host.settings.kafka_advertised
        if given:
            host, _, port = given.rpartition(":")
            return host.strip("[]"), int(port)
        found = self._transport.get_extra_info("sockname")
        return (found[0], found[1]) if isinstance(found, tuple) else ("localhost", 0)

    def request_size(self, arrived: bytearray, at: int) -> int | None:
        """A request begins with the size of what follows."""
        if len(arrived) - at < _SIZE.size:
            return None
        size: int = _SIZE.size + _SIZE.unpack_from(arrived, at)[0]
        if size < _HEAD.size:
            raise ProtocolError(f"a request of {size} bytes has no room for its head")
        return size

    def run(self, request: Pending) -> None:
        _, key, version, correlation = _HEAD.unpack_from(request.data)
        data = Input(memoryview(request.data)[_HEAD.size :])
        client_id = _client_id(data)
        api = APIS.get(key, UNKNOWN)
        body: Message = {}
        handle: Callable[[Request], None] = refuse_version
        if api.low <= version <= api.high:
            if api.is_flexible(version):
                data.skip_tags()
            body, handle = api.request.read(data, version), HANDLERS[api.key]
            if client_id and request.number == 1:
                self.name = client_id[: limits.CLIENT_NAME_CHARS]
        self.admit(needs_login=api.key not in _BEFORE_LOGIN)
        handle(Request(self, request, api, version, correlation, client_id, body))


def _client_id(data: Input) -> str:
    size = data.number(I16)
    if size < 0:
        return ""
    return bytes(data.take(size)).decode(errors="replace")
