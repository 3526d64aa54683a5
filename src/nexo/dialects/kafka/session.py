"""One connection of a Kafka client: what a request looks like, and which function runs it."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from nexo import limits
from nexo.dialects.kafka import (
    admin,
    classic_groups,
    cluster,
    commits,
    consumer_groups,
    fetching,
    offsets,
    producing,
    sasl,
    transactions,
)
from nexo.dialects.kafka.format.apis import APIS, UNKNOWN, Key
from nexo.dialects.kafka.format.codec import Message
from nexo.dialects.kafka.format.wire import I16, Input
from nexo.dialects.kafka.request import KafkaConnection, Request
from nexo.dialects.pipelined import Pending
from nexo.errors import ProtocolError

_SIZE = Struct(">i")
_HEAD = Struct(">ihhi")
_BEFORE_LOGIN = frozenset({Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE})

HANDLERS: dict[Key, Callable[[Request], None]] = {
    Key.PRODUCE: producing.produce,
    Key.INIT_PRODUCER_ID: transactions.init_producer_id,
    Key.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    Key.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    Key.TXN_OFFSET_COMMIT: transactions.offset_commit,
    Key.END_TXN: transactions.end,
    Key.FETCH: fetching.fetch,
    Key.LIST_OFFSETS: offsets.list_offsets,
    Key.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    Key.JOIN_GROUP: classic_groups.join_group,
    Key.SYNC_GROUP: classic_groups.sync_group,
    Key.HEARTBEAT: classic_groups.heartbeat,
    Key.LEAVE_GROUP: classic_groups.leave_group,
    Key.OFFSET_COMMIT: commits.offset_commit,
    Key.OFFSET_FETCH: commits.offset_fetch,
    Key.OFFSET_DELETE: commits.offset_delete,
    Key.DESCRIBE_GROUPS: classic_groups.describe_groups,
    Key.LIST_GROUPS: classic_groups.list_groups,
    Key.DELETE_GROUPS: classic_groups.delete_groups,
    Key.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    Key.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
    Key.CREATE_TOPICS: admin.create_topics,
    Key.DELETE_TOPICS: admin.delete_topics,
    Key.CREATE_PARTITIONS: admin.create_partitions,
    Key.DELETE_RECORDS: admin.delete_records,
    Key.DESCRIBE_CONFIGS: admin.describe_configs,
    Key.ALTER_CONFIGS: admin.alter_configs,
    Key.INCREMENTAL_ALTER_CONFIGS: admin.incremental_alter_configs,
    Key.SASL_HANDSHAKE: sasl.handshake,
    Key.SASL_AUTHENTICATE: sasl.authenticate,
    Key.API_VERSIONS: cluster.api_versions,
    Key.METADATA: cluster.metadata,
    Key.FIND_COORDINATOR: cluster.find_coordinator,
    Key.DESCRIBE_CLUSTER: cluster.describe_cluster,
}
assert HANDLERS.keys() == APIS.keys()


class KafkaSession(KafkaConnection):
    """One connection, whose requests run as they arrive."""

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
        handle: Callable[[Request], None] = cluster.refuse_version
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
