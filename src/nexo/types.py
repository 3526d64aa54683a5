"""What clients hand out, by name, for annotations: ``def send(job: Job[Mail]) -> None``.

Names as here are of the sync client, those that begin with ``Async`` of the async one; what
neither waits nor asks is the same in both.
"""

from nexo.client._async.pubsub import PubSub as AsyncPubSub
from nexo.client._async.pubsub_subscription import Subscription as AsyncSubscription
from nexo.client._async.queue import Queue as AsyncQueue
from nexo.client._async.queue_consumer import Consumer as AsyncQueueConsumer
from nexo.client._async.queue_jobs import Job as AsyncJob
from nexo.client._async.queue_jobs import JobBatch as AsyncJobBatch
from nexo.client._async.store import Store as AsyncStore
from nexo.client._async.store_collections import StoreList as AsyncStoreList
from nexo.client._async.store_collections import StoreMap as AsyncStoreMap
from nexo.client._async.store_collections import StoreSet as AsyncStoreSet
from nexo.client._async.stream import Stream as AsyncStream
from nexo.client._async.stream_consumer import Consumer as AsyncStreamConsumer
from nexo.client._async.stream_consumer import Delivered as AsyncStreamRecord
from nexo.client._async.stream_consumer import Records as AsyncStreamRecords
from nexo.client._async.stream_subscription import Subscription as AsyncStreamSubscription
from nexo.client._async.transaction import Transaction as AsyncTransaction
from nexo.client._sync.pubsub import PubSub
from nexo.client._sync.pubsub_subscription import Subscription
from nexo.client._sync.queue import Queue
from nexo.client._sync.queue_consumer import Consumer as QueueConsumer
from nexo.client._sync.queue_jobs import Job, JobBatch
from nexo.client._sync.store import Store
from nexo.client._sync.store_collections import StoreList, StoreMap, StoreSet
from nexo.client._sync.stream import Stream
from nexo.client._sync.stream_consumer import Consumer as StreamConsumer
from nexo.client._sync.stream_consumer import Delivered as StreamRecord
from nexo.client._sync.stream_consumer import Records as StreamRecords
from nexo.client._sync.stream_subscription import Subscription as StreamSubscription
from nexo.client._sync.transaction import Transaction
from nexo.client.pubsub_message import Message
from nexo.client.queue_views import DeadJob, JobState, JobView, QueueInfo, Schedule
from nexo.client.stream_records import Published, Record

__all__ = [
    "AsyncJob",
    "AsyncJobBatch",
    "AsyncPubSub",
    "AsyncQueue",
    "AsyncQueueConsumer",
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
    "DeadJob",
    "Job",
    "JobBatch",
    "JobState",
    "JobView",
    "Message",
    "PubSub",
    "Published",
    "Queue",
    "QueueConsumer",
    "QueueInfo",
    "Record",
    "Schedule",
    "Store",
    "StoreList",
    "StoreMap",
    "StoreSet",
    "Stream",
    "StreamConsumer",
    "StreamRecord",
    "StreamRecords",
    "StreamSubscription",
    "Subscription",
    "Transaction",
]
