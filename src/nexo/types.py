"""The types that clients hand out, for annotations: ``def send(job: Job[Mail]) -> None``.

Names as here are of the sync client, those that begin with ``Async`` of the async one; what
neither waits nor asks is the same in both.
"""

from nexo.client._async.contract import Contract as AsyncContract
from nexo.client._async.pubsub.pubsub import PubSub as AsyncPubSub
from nexo.client._async.pubsub.pubsub import PubSubTopic as AsyncPubSubTopic
from nexo.client._async.pubsub.subscription import Subscription as AsyncSubscription
from nexo.client._async.queue.admin import Crons as AsyncCrons
from nexo.client._async.queue.admin import DeadLetters as AsyncDeadLetters
from nexo.client._async.queue.admin import Scheduled as AsyncScheduled
from nexo.client._async.queue.jobs import Job as AsyncJob
from nexo.client._async.queue.jobs import JobBatch as AsyncJobBatch
from nexo.client._async.queue.queue import Queue as AsyncQueue
from nexo.client._async.queue.subscription import QueueSubscription as AsyncQueueSubscription
from nexo.client._async.queue.subscription import Worker as AsyncWorker
from nexo.client._async.store.collections import StoreList as AsyncStoreList
from nexo.client._async.store.collections import StoreMap as AsyncStoreMap
from nexo.client._async.store.collections import StoreSet as AsyncStoreSet
from nexo.client._async.store.coordination import Lock as AsyncLock
from nexo.client._async.store.coordination import RateLimiter as AsyncRateLimiter
from nexo.client._async.store.store import Store as AsyncStore
from nexo.client._async.stream.consumer import StreamConsumer as AsyncStreamConsumer
from nexo.client._async.stream.groups import Group as AsyncGroup
from nexo.client._async.stream.groups import Parked as AsyncParked
from nexo.client._async.stream.records import Records as AsyncStreamRecords
from nexo.client._async.stream.records import StreamRecord as AsyncStreamRecord
from nexo.client._async.stream.stream import Stream as AsyncStream
from nexo.client._async.stream.subscription import StreamSubscription as AsyncStreamSubscription
from nexo.client._async.stream.transaction import Transaction as AsyncTransaction
from nexo.client._sync.contract import Contract
from nexo.client._sync.pubsub.pubsub import PubSub, PubSubTopic
from nexo.client._sync.pubsub.subscription import Subscription
from nexo.client._sync.queue.admin import Crons, DeadLetters, Scheduled
from nexo.client._sync.queue.jobs import Job, JobBatch
from nexo.client._sync.queue.queue import Queue
from nexo.client._sync.queue.subscription import QueueSubscription, Worker
from nexo.client._sync.store.collections import StoreList, StoreMap, StoreSet
from nexo.client._sync.store.coordination import Lock, RateLimiter
from nexo.client._sync.store.store import Store
from nexo.client._sync.stream.consumer import StreamConsumer
from nexo.client._sync.stream.groups import Group, Parked
from nexo.client._sync.stream.records import Records as StreamRecords
from nexo.client._sync.stream.records import StreamRecord
from nexo.client._sync.stream.stream import Stream
from nexo.client._sync.stream.subscription import StreamSubscription
from nexo.client._sync.stream.transaction import Transaction
from nexo.client.address import ConnectOptions
from nexo.client.pubsub_message import Message, SubscribeOptions
from nexo.client.stream_options import GroupSettings, Retention, StreamSettings
from nexo.client.stream_records import ParkedRecord, Published, PublishedBatch, Record
from nexo.client.views import (
    BackfillResult,
    ContractColumn,
    ContractInfo,
    DeadJob,
    JobView,
    QueueSettings,
    RateDecision,
)
from nexo.model.pubsub import RetainedTopic, SubscriptionInfo
from nexo.model.queue import JobState, QueueInfo, Schedule
from nexo.model.server import (
    BrokerInfo,
    ConnectionLimits,
    DiskInfo,
    Durations,
    LakeLocation,
    LostData,
    ProcessInfo,
    PubSubInfo,
    QueuesInfo,
    ReplicaInfo,
    SavingInfo,
    ServerInfo,
    SlowSubscriber,
    StoreInfo,
    StreamsInfo,
)
from nexo.model.store import KeyInfo, KeysPage
from nexo.model.stream import GroupInfo, PartitionInfo, PartitionProgress, RecordState, StreamInfo
from nexo.options.units import Duration
from nexo.sql.result import Result

__all__ = [
    "AsyncContract",
    "AsyncCrons",
    "AsyncDeadLetters",
    "AsyncGroup",
    "AsyncJob",
    "AsyncJobBatch",
    "AsyncLock",
    "AsyncParked",
    "AsyncPubSub",
    "AsyncPubSubTopic",
    "AsyncQueue",
    "AsyncQueueSubscription",
    "AsyncRateLimiter",
    "AsyncScheduled",
    "AsyncStore",
    "AsyncStoreList",
    "AsyncStoreMap",
    "AsyncStoreSet",
    "AsyncStream",
    "AsyncStreamConsumer",
    "AsyncStreamRecord",
    "AsyncStreamRecords",
    "AsyncStreamSubscription",
    "AsyncSubscription",
    "AsyncTransaction",
    "AsyncWorker",
    "BackfillResult",
    "BrokerInfo",
    "ConnectOptions",
    "ConnectionLimits",
    "Contract",
    "ContractColumn",
    "ContractInfo",
    "Crons",
    "DeadJob",
    "DeadLetters",
    "DiskInfo",
    "Duration",
    "Durations",
    "Group",
    "GroupInfo",
    "GroupSettings",
    "Job",
    "JobBatch",
    "JobState",
    "JobView",
    "KeyInfo",
    "KeysPage",
    "LakeLocation",
    "Lock",
    "LostData",
    "Message",
    "Parked",
    "ParkedRecord",
    "PartitionInfo",
    "PartitionProgress",
    "ProcessInfo",
    "PubSub",
    "PubSubInfo",
    "PubSubTopic",
    "Published",
    "PublishedBatch",
    "Queue",
    "QueueInfo",
    "QueueSettings",
    "QueueSubscription",
    "QueuesInfo",
    "RateDecision",
    "RateLimiter",
    "Record",
    "RecordState",
    "ReplicaInfo",
    "Result",
    "RetainedTopic",
    "Retention",
    "SavingInfo",
    "Schedule",
    "Scheduled",
    "ServerInfo",
    "SlowSubscriber",
    "Store",
    "StoreInfo",
    "StoreList",
    "StoreMap",
    "StoreSet",
    "Stream",
    "StreamConsumer",
    "StreamInfo",
    "StreamRecord",
    "StreamRecords",
    "StreamSettings",
    "StreamSubscription",
    "StreamsInfo",
    "SubscribeOptions",
    "Subscription",
    "SubscriptionInfo",
    "Transaction",
    "Worker",
]
