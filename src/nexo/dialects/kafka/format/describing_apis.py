"""The APIs of tools that only look, like those of `apis`."""

from __future__ import annotations

from nexo.dialects.kafka.format.api import Api, ApiKey

_VOTER = "id:i32 directory:uuid@2+ end:i64 last_fetch_ms:i64@1+=-1 last_caught_up_ms:i64@1+=-1"
_CURSOR = "?{ topic:str partition:i32 }"
_ACL = """resource_type:i8 resource_name:str pattern_type:i8 principal:str host:str operation:i8
permission:i8"""

DESCRIBING = (
    Api(
        ApiKey.DESCRIBE_ACLS, 1, 3, 2,
        _ACL,
        """throttle:i32 error:i16 message:str=null resources:[ type:i8 name:str pattern_type:i8
        acls:[ principal:str host:str operation:i8 permission:i8 ] ]""",
    ),
    Api(
        ApiKey.CREATE_ACLS, 1, 3, 2,
        f"creations:[ {_ACL} ]", "throttle:i32 results:[ error:i16 message:str=null ]",
    ),
    Api(
        ApiKey.DELETE_ACLS, 1, 3, 2,
        f"filters:[ {_ACL} ]",
        f"""throttle:i32 results:[ error:i16 message:str=null matching:[ error:i16 message:str=null
        {_ACL} ] ]""",
    ),
    Api(
        ApiKey.DESCRIBE_LOG_DIRS, 1, 4, 2,
        "topics:[ name:str partitions:[]i32 ]",
        """throttle:i32 error:i16@3+ results:[ error:i16 log_dir:str topics:[ name:str
        partitions:[ partition:i32 size:i64 lag:i64 is_future:bool ] ] total:i64@4+=-1
        usable:i64@4+=-1 ]""",
    ),
    Api(
        ApiKey.ELECT_LEADERS, 0, 2, 2,
        "election:i8@1+ topics:[ name:str partitions:[]i32 ] timeout_ms:i32",
        """throttle:i32 error:i16@1+ results:[ name:str partitions:[ partition:i32 error:i16
        message:str=null ] ]""",
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0,
        "timeout_ms:i32 topics:[ name:str partitions:[]i32 ]",
        """throttle:i32 error:i16 message:str=null topics:[ name:str partitions:[ partition:i32
        replicas:[]i32 adding:[]i32 removing:[]i32 ] ]""",
    ),
    Api(
        ApiKey.DESCRIBE_QUORUM, 0, 2, 0,
        "topics:[ name:str partitions:[ partition:i32 ] ]",
        f"""error:i16 message:str@2+=null topics:[ name:str partitions:[ partition:i32 error:i16
        message:str@2+=null leader:i32 leader_epoch:i32 high:i64 voters:[ {_VOTER} ]
        observers:[ {_VOTER} ] ] ]
        nodes:[ id:i32 listeners:[ name:str host:str port:u16 ] ]@2+""",
    ),
    Api(
        ApiKey.UPDATE_FEATURES, 0, 1, 0,
        """timeout_ms:i32 updates:[ feature:str level:i16 downgrade:bool@0-0 kind:i8@1+ ]
        validate_only:bool@1+""",
        """throttle:i32 error:i16 message:str=null results:[ feature:str error:i16
        message:str=null ]""",
    ),
    Api(
        ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0,
        "topics:[ name:str partitions:[]i32 ]",
        """throttle:i32 topics:[ name:str partitions:[ partition:i32 error:i16 message:str=null
        active:[ producer_id:i64 epoch:i32 last_sequence:i32=-1 last_ms:i64=-1
        coordinator_epoch:i32 current_start:i64=-1 ] ] ]""",
    ),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0,
        "ids:[]str",
        """throttle:i32 states:[ error:i16 transactional_id:str state:str timeout_ms:i32
        start_ms:i64=-1 producer_id:i64=-1 epoch:i16=-1 topics:[ name:str partitions:[]i32 ] ]""",
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS, 0, 1, 0,
        "states:[]str producer_ids:[]i64 duration_ms:i64@1+=-1",
        """throttle:i32 error:i16 unknown:[]str states:[ transactional_id:str producer_id:i64
        state:str ]""",
    ),
    Api(
        ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0,
        "kinds:[]i8@1+", "throttle:i32 error:i16 resources:[ name:str type:i8@1+=16 ]",
    ),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0,
        f"topics:[ name:str ] limit:i32 cursor:{_CURSOR}",
        f"""throttle:i32 topics:[ error:i16 name:str id:uuid internal:bool partitions:[ error:i16
        partition:i32 leader:i32 leader_epoch:i32 replicas:[]i32 isr:[]i32 eligible:[]i32
        last_known:[]i32 offline:[]i32 ] operations:i32=-2147483648 ] next_cursor:{_CURSOR}""",
    ),
)  # fmt: skip
