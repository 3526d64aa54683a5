"""The APIs that are served, with their versions and the schemas of both directions."""

from __future__ import annotations

from nexo.dialects.kafka.format.api import Api, ApiKey
from nexo.dialects.kafka.format.describing_apis import DESCRIBING

__all__ = ["APIS", "UNKNOWN", "Api", "ApiKey"]

_NEVER = 999


_BROKER = "node_id:i32 host:str port:i32"
_STORED = "partition:i32 offset:i64 leader_epoch:i32@5+=-1 metadata:str error:i16"
_MEMBER_ERRORS = "throttle:i32 topics:[ name:str partitions:[ partition:i32 error:i16 ] ]"
_ALTERED = "throttle:i32 responses:[ error:i16 message:str=null type:i8 name:str ]"
_ASSIGNED = "topics:[ id:uuid name:str partitions:[]i32 ]"
_TXN = "transactional_id:str producer_id:i64 epoch:i16"

_ALL = (
    Api(
        ApiKey.PRODUCE, 3, 13, 9,
        """transactional_id:str acks:i16 timeout_ms:i32
        topics:[ name:str@3-12 id:uuid@13+ partitions:[ index:i32 records:bytes ] ]""",
        """topics:[ name:str@3-12 id:uuid@13+ partitions:[ index:i32 error:i16 base_offset:i64=-1
        append_ms:i64=-1 log_start:i64@5+=-1 errors:[ index:i32 message:str ]@8+
        message:str@8+=null ] ] throttle:i32""",
    ),
    Api(
        ApiKey.FETCH, 4, 17, 12,
        """replica_id:i32@4-14 max_wait_ms:i32 min_bytes:i32 max_bytes:i32 isolation:i8
        session_id:i32@7+ session_epoch:i32@7+=-1 topics:[ name:str@4-12 id:uuid@13+
        partitions:[ partition:i32 leader_epoch:i32@9+=-1 offset:i64 last_epoch:i32@12+
        log_start:i64@5+ max_bytes:i32 ] ]
        forgotten:[ name:str@4-12 id:uuid@13+ partitions:[]i32 ]@7+ rack:str@11+""",
        # written by hand in `fetching`
        """throttle:i32 error:i16@7+ session_id:i32@7+ topics:[ name:str@4-12 id:uuid@13+
        partitions:[ partition:i32 error:i16 high:i64=-1 stable:i64=-1 log_start:i64@5+=-1
        aborted:[ producer_id:i64 first_offset:i64 ] replica:i32@11+=-1 records:bytes=null ] ]""",
    ),
    Api(
        ApiKey.LIST_OFFSETS, 1, 9, 6,
        """replica_id:i32 isolation:i8@2+ topics:[ name:str partitions:[ partition:i32
        leader_epoch:i32@4+ timestamp:i64 ] ]""",
        """throttle:i32@2+ topics:[ name:str partitions:[ partition:i32 error:i16
        timestamp:i64=-1 offset:i64=-1 leader_epoch:i32@4+=-1 ] ]""",
    ),
    Api(
        ApiKey.METADATA, 0, 12, 9,
        """topics:[ id:uuid@10+ name:str ] auto_create:bool@4+=true cluster_operations:bool@8-10
        topic_operations:bool@8+""",
        f"""throttle:i32@3+ brokers:[ {_BROKER} rack:str@1+=null ] cluster_id:str@2+=null
        controller:i32@1+ topics:[ error:i16 name:str id:uuid@10+ internal:bool@1+
        partitions:[ error:i16 partition:i32 leader:i32 leader_epoch:i32@7+ replicas:[]i32 isr:[]i32
        offline:[]i32@5+ ] operations:i32@8+=-2147483648 ] operations:i32@8-10=-2147483648""",
    ),
    Api(
        ApiKey.OFFSET_COMMIT, 2, 9, 8,
        """group:str generation:i32 member:str instance:str@7+=null retention_ms:i64@2-4
        topics:[ name:str partitions:[ partition:i32 offset:i64 leader_epoch:i32@6+=-1 metadata:str
        ] ]""",
        "throttle:i32@3+ topics:[ name:str partitions:[ partition:i32 error:i16 ] ]",
    ),
    Api(
        ApiKey.OFFSET_FETCH, 1, 9, 6,
        """group:str@1-7 topics:[ name:str partitions:[]i32 ]@1-7
        groups:[ group:str member:str@9+=null epoch:i32@9+=-1
        topics:[ name:str partitions:[]i32 ] ]@8+ stable:bool@7+""",
        f"""throttle:i32@3+ topics:[ name:str partitions:[ {_STORED} ] ]@1-7 error:i16@2-7
        groups:[ group:str topics:[ name:str partitions:[ {_STORED} ] ] error:i16 ]@8+""",
    ),
    Api(
        ApiKey.FIND_COORDINATOR, 0, 5, 3,
        "key:str@0-3 key_type:i8@1+ keys:[]str@4+",
        f"""throttle:i32@1+ error:i16@0-3 message:str@1-3=null node_id:i32@0-3 host:str@0-3
        port:i32@0-3 coordinators:[ key:str {_BROKER} error:i16 message:str=null ]@4+""",
    ),
    Api(
        ApiKey.JOIN_GROUP, 0, 9, 6,
        """group:str session_ms:i32 rebalance_ms:i32@1+=-1 member:str instance:str@5+=null
        protocol_type:str protocols:[ name:str metadata:bytes ] reason:str@8+""",
        """throttle:i32@2+ error:i16 generation:i32=-1 protocol_type:str@7+ protocol:str
        leader:str skip_assignment:bool@9+ member:str members:[ member:str instance:str@5+=null
        metadata:bytes ]""",
    ),
    Api(
        ApiKey.HEARTBEAT, 0, 4, 4,
        "group:str generation:i32 member:str instance:str@3+=null",
        "throttle:i32@1+ error:i16",
    ),
    Api(
        ApiKey.LEAVE_GROUP, 0, 5, 4,
        "group:str member:str@0-2 members:[ member:str instance:str reason:str@5+ ]@3+",
        "throttle:i32@1+ error:i16 members:[ member:str instance:str error:i16 ]@3+",
    ),
    Api(
        ApiKey.SYNC_GROUP, 0, 5, 4,
        """group:str generation:i32 member:str instance:str@3+=null protocol_type:str@5+=null
        protocol:str@5+=null assignments:[ member:str assignment:bytes ]""",
        """throttle:i32@1+ error:i16 protocol_type:str@5+=null protocol:str@5+=null
        assignment:bytes""",
    ),
    Api(
        ApiKey.DESCRIBE_GROUPS, 0, 5, 5,
        "groups:[]str operations:bool@3+",
        """throttle:i32@1+ groups:[ error:i16 group:str state:str protocol_type:str protocol:str
        members:[ member:str instance:str@4+=null client_id:str client_host:str metadata:bytes
        assignment:bytes ] operations:i32@3+=-2147483648 ]""",
    ),
    Api(
        ApiKey.LIST_GROUPS, 0, 5, 3,
        "states:[]str@4+ types:[]str@5+",
        """throttle:i32@1+ error:i16 groups:[ group:str protocol_type:str state:str@4+
        type:str@5+ ]""",
    ),
    Api(ApiKey.SASL_HANDSHAKE, 1, 1, _NEVER, "mechanism:str", "error:i16 mechanisms:[]str"),
    Api(
        ApiKey.API_VERSIONS, 0, 4, 3,
        "name:str@3+ version:str@3+",
        """error:i16 keys:[ key:i16 low:i16 high:i16 ] throttle:i32@1+
        supported:[ name:str low:i16 high:i16 ]@3+#0 epoch:i64@3+#1=-1
        finalized:[ name:str high:i16 low:i16 ]@3+#2""",
    ),
    Api(
        ApiKey.CREATE_TOPICS, 2, 7, 5,
        """topics:[ name:str partitions:i32 replication:i16 assignments:[ partition:i32
        brokers:[]i32 ] configs:[ name:str value:str ] ] timeout_ms:i32 validate_only:bool""",
        """throttle:i32 topics:[ name:str id:uuid@7+ error:i16 message:str=null partitions:i32@5+=-1
        replication:i16@5+=-1 configs:[ name:str value:str read_only:bool source:i8
        sensitive:bool ]@5+ ]""",
    ),
    Api(
        ApiKey.DELETE_TOPICS, 1, 6, 4,
        "named:[ name:str id:uuid ]@6+ topics:[]str@1-5 timeout_ms:i32",
        "throttle:i32 topics:[ name:str id:uuid@6+ error:i16 message:str@5+=null ]",
    ),
    Api(
        ApiKey.DELETE_RECORDS, 0, 2, 2,
        "topics:[ name:str partitions:[ partition:i32 offset:i64 ] ] timeout_ms:i32",
        "throttle:i32 topics:[ name:str partitions:[ partition:i32 low:i64=-1 error:i16 ] ]",
    ),
    Api(
        ApiKey.INIT_PRODUCER_ID, 0, 5, 2,
        "transactional_id:str timeout_ms:i32 producer_id:i64@3+=-1 epoch:i16@3+=-1",
        "throttle:i32 error:i16 producer_id:i64=-1 epoch:i16=-1",
    ),
    Api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4,
        """replica_id:i32@3+ topics:[ name:str partitions:[ partition:i32 current_epoch:i32
        epoch:i32 ] ]""",
        """throttle:i32 topics:[ name:str partitions:[ error:i16 partition:i32 epoch:i32=-1
        end_offset:i64=-1 ] ]""",
    ),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, 3,
        f"{_TXN} topics:[ name:str partitions:[]i32 ]", _MEMBER_ERRORS,
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, f"{_TXN} group:str", "throttle:i32 error:i16"),
    Api(
        ApiKey.END_TXN, 0, 5, 3,
        f"{_TXN} committed:bool",
        "throttle:i32 error:i16 producer_id:i64@5+=-1 epoch:i16@5+=-1",
    ),
    Api(
        ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3,
        """transactional_id:str group:str producer_id:i64 epoch:i16 generation:i32@3+=-1
        member:str@3+ instance:str@3+=null topics:[ name:str partitions:[ partition:i32 offset:i64
        leader_epoch:i32@2+=-1 metadata:str ] ]""",
        _MEMBER_ERRORS,
    ),
    Api(
        ApiKey.DESCRIBE_CONFIGS, 1, 4, 4,
        """resources:[ type:i8 name:str keys:[]str ] synonyms:bool docs:bool@3+""",
        """throttle:i32 results:[ error:i16 message:str=null type:i8 name:str configs:[ name:str
        value:str read_only:bool source:i8 sensitive:bool synonyms:[ name:str value:str source:i8 ]
        config_type:i8@3+ docs:str@3+=null ] ]""",
    ),
    Api(
        ApiKey.ALTER_CONFIGS, 0, 2, 2,
        "resources:[ type:i8 name:str configs:[ name:str value:str ] ] validate_only:bool",
        _ALTERED,
    ),
    Api(
        ApiKey.SASL_AUTHENTICATE, 0, 2, 2,
        "auth:bytes", "error:i16 message:str=null auth:bytes lifetime_ms:i64@1+",
    ),
    Api(
        ApiKey.CREATE_PARTITIONS, 0, 3, 2,
        """topics:[ name:str count:i32 assignments:[ brokers:[]i32 ] ] timeout_ms:i32
        validate_only:bool""",
        "throttle:i32 results:[ name:str error:i16 message:str=null ]",
    ),
    Api(
        ApiKey.DELETE_GROUPS, 0, 2, 2,
        "groups:[]str", "throttle:i32 results:[ group:str error:i16 ]",
    ),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1,
        "resources:[ type:i8 name:str configs:[ name:str op:i8 value:str ] ] validate_only:bool",
        _ALTERED,
    ),
    Api(
        ApiKey.OFFSET_DELETE, 0, 0, _NEVER,
        "group:str topics:[ name:str partitions:[ partition:i32 ] ]",
        "error:i16 throttle:i32 topics:[ name:str partitions:[ partition:i32 error:i16 ] ]",
    ),
    Api(
        ApiKey.DESCRIBE_CLUSTER, 0, 0, 0,
        "operations:bool",
        f"""throttle:i32 error:i16 message:str=null cluster_id:str controller:i32
        brokers:[ {_BROKER} rack:str=null ] operations:i32=-2147483648""",
    ),
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0,
        """group:str member:str epoch:i32 instance:str rack:str rebalance_ms:i32=-1 topics:[]str
        regex:str@1+=null assignor:str owned:[ id:uuid partitions:[]i32 ]""",
        """throttle:i32 error:i16 message:str=null member:str=null epoch:i32 heartbeat_ms:i32
        assignment:?{ topics:[ id:uuid partitions:[]i32 ] }""",
    ),
    Api(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 0, 0,
        "groups:[]str operations:bool",
        f"""throttle:i32 groups:[ error:i16 message:str=null group:str state:str epoch:i32
        assignment_epoch:i32 assignor:str members:[ member:str instance:str=null rack:str=null
        epoch:i32 client_id:str client_host:str topics:[]str regex:str=null
        assignment:{{ {_ASSIGNED} }} target:{{ {_ASSIGNED} }} ] operations:i32=-2147483648 ]""",
    ),
    *DESCRIBING,
)  # fmt: skip

APIS = {api.key.value: api for api in _ALL}
"""By key."""

UNKNOWN = Api(ApiKey.UNKNOWN, 1, 0, _NEVER, "", "error:i16")
"""What is known of all others: most answers begin with an error."""
