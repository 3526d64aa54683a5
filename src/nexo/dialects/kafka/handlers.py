"""Which function answers which API."""

from __future__ import annotations

from collections.abc import Callable

from nexo.dialects.kafka import cluster, fetching, producing
from nexo.dialects.kafka.apis import Key
from nexo.dialects.kafka.request import Request

HANDLERS: dict[Key, Callable[[Request], None]] = {
    Key.PRODUCE: producing.produce,
    Key.INIT_PRODUCER_ID: producing.init_producer_id,
    Key.FETCH: fetching.fetch,
    Key.LIST_OFFSETS: fetching.list_offsets,
    Key.OFFSET_FOR_LEADER_EPOCH: fetching.offset_for_leader_epoch,
    Key.API_VERSIONS: cluster.api_versions,
    Key.METADATA: cluster.metadata,
    Key.FIND_COORDINATOR: cluster.find_coordinator,
    Key.DESCRIBE_CLUSTER: cluster.describe_cluster,
}
