"""One connection of a Kafka client: what a request looks like, and which function runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TypeAlias

from nexo import limits
from nexo.dialects.kafka import (
    admin,
    classic_groups,
    cluster,
    commits,
    consumer_groups,
    fetching,
    offsets,
    producer_ids,
    producing,
    sasl,
    transactions,
)
from nexo.dialects.kafka.describing import controller, partitions, producers
from nexo.dialects.kafka.format.apis import APIS, UNKNOWN, ApiKey
from nexo.dialects.kafka.format.wire import I16, Input
from nexo.dialects.kafka.oversized import OversizedProduce
from nexo.dialects.kafka.request import KafkaConnection, Request
from nexo.dialects.pipelined import Pending, Skipping
from nexo.errors import NexoError, ProtocolError

_SIZE = Struct(">i")
_HEAD = Struct(">ihhi")
_BEFORE_LOGIN = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

RequestHandler: TypeAlias = Callable[[Request], Iterator[int] | None]
"""Runs a request: at once, or in steps that say how much work each was."""

HANDLERS: dict[ApiKey, RequestHandler] = {
    ApiKey.PRODUCE: producing.produce,
    ApiKey.INIT_PRODUCER_ID: producer_ids.init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.TXN_OFFSET_COMMIT: transactions.offset_commit,
    ApiKey.END_TXN: transactions.end,
    ApiKey.FETCH: fetching.fetch,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.JOIN_GROUP: classic_groups.join_group,
    ApiKey.SYNC_GROUP: classic_groups.sync_group,
    ApiKey.HEARTBEAT: classic_groups.heartbeat,
    ApiKey.LEAVE_GROUP: classic_groups.leave_group,
    ApiKey.OFFSET_COMMIT: commits.offset_commit,
    ApiKey.OFFSET_FETCH: commits.offset_fetch,
    ApiKey.OFFSET_DELETE: commits.offset_delete,
    ApiKey.DESCRIBE_GROUPS: classic_groups.describe_groups,
    ApiKey.LIST_GROUPS: classic_groups.list_groups,
    ApiKey.DELETE_GROUPS: classic_groups.delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
    ApiKey.CREATE_TOPICS: admin.create_topics,
    ApiKey.DELETE_TOPICS: admin.delete_topics,
    ApiKey.CREATE_PARTITIONS: admin.create_partitions,
    ApiKey.DELETE_RECORDS: admin.delete_records,
    ApiKey.DESCRIBE_CONFIGS: admin.describe_configs,
    ApiKey.ALTER_CONFIGS: admin.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: admin.incremental_alter_configs,
    ApiKey.SASL_HANDSHAKE: sasl.handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.authenticate,
    ApiKey.API_VERSIONS: cluster.api_versions,
    ApiKey.METADATA: cluster.metadata,
    ApiKey.FIND_COORDINATOR: cluster.find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: partitions.describe_topic_partitions,
    ApiKey.DESCRIBE_LOG_DIRS: partitions.describe_log_dirs,
    ApiKey.ELECT_LEADERS: partitions.elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: partitions.list_reassignments,
    ApiKey.DESCRIBE_PRODUCERS: producers.describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: producers.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: producers.list_transactions,
    ApiKey.DESCRIBE_QUORUM: controller.describe_quorum,
    ApiKey.UPDATE_FEATURES: controller.update_features,
    ApiKey.LIST_CONFIG_RESOURCES: controller.list_config_resources,
    ApiKey.DESCRIBE_ACLS: controller.describe_acls,
    ApiKey.CREATE_ACLS: controller.create_acls,
    ApiKey.DELETE_ACLS: controller.delete_acls,
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

    @property
    def largest_request(self) -> int:
        return max(limits.KAFKA_REQUEST_BYTES, super().largest_request)

    def skipping(self, size: int) -> Skipping | None:
        return OversizedProduce(self, size)

    def run(self, request: Pending) -> None:
        _, key, version, correlation = _HEAD.unpack_from(request.data)
        data = Input(memoryview(request.data)[_HEAD.size :])
        client_id = _client_id(data)
        api = APIS.get(key, UNKNOWN)
        asked = Request(self, request, api, version, correlation, client_id, {})
        if not api.low <= version <= api.high:
            self._handle(asked, cluster.refuse_version)
            return
        if client_id and request.number == 1:
            self.name = client_id[: limits.CLIENT_NAME_CHARS]
        if api.is_flexible(version):
            data.skip_tags()
        if api.key is not ApiKey.PRODUCE:  # it comes after what this connection sent before
            self.streams.publishing.gathering.flush()
        if asked.is_long:
            self.work(self._careful(request, self._read(asked, data)))
        else:
            asked.body = api.request.read(data, version)
            self._handle(asked, HANDLERS[api.key])

    def _handle(self, asked: Request, handle: RequestHandler) -> None:
        self.admit(needs_login=asked.api.key not in _BEFORE_LOGIN)
        if (steps := handle(asked)) is not None:
            self.work(self._careful(asked.pending, steps))

    def _read(self, asked: Request, data: Input) -> Iterator[int]:
        """A long request, in steps from its first byte on."""
        self.admit(needs_login=asked.api.key not in _BEFORE_LOGIN)
        asked.body = yield from asked.api.request.read_steps(data, asked.version)
        if (steps := HANDLERS[asked.api.key](asked)) is not None:
            yield from steps

    def _careful(self, request: Pending, steps: Iterator[int]) -> Iterator[int]:
        """Refuse the request if a step of it fails, whenever that is."""
        try:
            yield from steps
        except ProtocolError as error:
            self.refuse(error)
        except NexoError as error:
            request.refuse(error)


def _client_id(data: Input) -> str:
    size = data.number(I16)
    if size < 0:
        return ""
    return bytes(data.take(size)).decode(errors="replace")
