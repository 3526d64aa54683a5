"""Which function answers which API."""

from __future__ import annotations

from collections.abc import Callable

from nexo.dialects.kafka import (
    admin,
    cluster,
    commits,
    consumer_groups,
    fetching,
    groups,
    offsets,
    producing,
    sasl,
    transactions,
)
from nexo.dialects.kafka.format.apis import APIS, Key
from nexo.dialects.kafka.request import Request

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
    Key.JOIN_GROUP: groups.join_group,
    Key.SYNC_GROUP: groups.sync_group,
    Key.HEARTBEAT: groups.heartbeat,
    Key.LEAVE_GROUP: groups.leave_group,
    Key.OFFSET_COMMIT: commits.offset_commit,
    Key.OFFSET_FETCH: commits.offset_fetch,
    Key.OFFSET_DELETE: commits.offset_delete,
    Key.DESCRIBE_GROUPS: groups.describe_groups,
    Key.LIST_GROUPS: groups.list_groups,
    Key.DELETE_GROUPS: groups.delete_groups,
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
