"""Kafka-style topics on Nexo's streams, or on a real Kafka: ``kafka://host:9092`` (SPEC G, H3).

Names as here are for threads, those that begin with ``Async`` for asyncio.
"""

from nexo.topics._async.admin import AsyncAdminClient
from nexo.topics._async.consumer.consumer import AsyncConsumer
from nexo.topics._async.consumer.group import AsyncConsumerGroup
from nexo.topics._async.once.context import AsyncExactlyOnceContext
from nexo.topics._async.once.transaction import AsyncOnceTransaction
from nexo.topics._async.producer.producer import AsyncProducer
from nexo.topics._async.topic import AsyncTopic
from nexo.topics._sync.admin import AdminClient
from nexo.topics._sync.consumer.consumer import Consumer
from nexo.topics._sync.consumer.group import ConsumerGroup
from nexo.topics._sync.once.context import ExactlyOnceContext
from nexo.topics._sync.once.transaction import OnceTransaction
from nexo.topics._sync.producer.producer import Producer
from nexo.topics._sync.topic import Topic
from nexo.topics.model import (
    Committed,
    ConsumerOptions,
    GroupDescription,
    PartitionDescription,
    Position,
    ProducerRecord,
    Rebalance,
    RecordMetadata,
    TopicDescription,
    TopicMessage,
    TopicPartition,
)
from nexo.topics.once import Checkpoint, OutboxEvent

__all__ = [
    "AdminClient",
    "AsyncAdminClient",
    "AsyncConsumer",
    "AsyncConsumerGroup",
    "AsyncExactlyOnceContext",
    "AsyncOnceTransaction",
    "AsyncProducer",
    "AsyncTopic",
    "Checkpoint",
    "Committed",
    "Consumer",
    "ConsumerGroup",
    "ConsumerOptions",
    "ExactlyOnceContext",
    "GroupDescription",
    "OnceTransaction",
    "OutboxEvent",
    "PartitionDescription",
    "Position",
    "Producer",
    "ProducerRecord",
    "Rebalance",
    "RecordMetadata",
    "Topic",
    "TopicDescription",
    "TopicMessage",
    "TopicPartition",
]
