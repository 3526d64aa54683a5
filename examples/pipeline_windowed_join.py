"""Orders joined with the payments of the next ten minutes, as both streams grow.

Watermarks bound what Spark must remember: an order waits ten minutes for its payment. The result
goes into a third stream, each pair once, even if Spark is killed and started again.

Run a server (``nexo serve``), then this file; it ends when what is there was joined.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import nexo
from pyspark_nexo import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def events(spark: SparkSession, url: str, stream: str, side: str) -> DataFrame:
    frame = spark.readStream.format("nexo").options(url=url, stream=stream).load()
    return frame.select(
        f.expr("cast(key as string)").alias(f"{side}_key"),
        f.col("timestamp").alias(f"{side}_at"),
        f.expr("cast(value as string)").alias(side),
    ).withWatermark(f"{side}_at", "10 minutes")


def main(url: str, checkpoint: str) -> int:
    with nexo.connect(url) as client:
        for name in ("orders", "payments", "paid_orders"):
            client.stream(name).create()
        client.stream("orders").publish_many(
            [f"order {n}" for n in range(100)], keys=[f"o{n}" for n in range(100)]
        )
        client.stream("payments").publish_many(
            [f"payment {n}" for n in range(60)], keys=[f"o{n}" for n in range(60)]
        )
    spark = session("local[2]", app="windowed join", conf={"spark.sql.shuffle.partitions": "2"})
    orders = events(spark, url, "orders", "ordered")
    payments = events(spark, url, "payments", "paid")
    within = (
        "ordered_key = paid_key and paid_at between ordered_at and ordered_at + interval 10 minutes"
    )
    paired = orders.join(payments, f.expr(within)).select(
        f.col("ordered_key").alias("key"), f.to_json(f.struct("ordered", "paid")).alias("value")
    )
    query = (
        paired.writeStream.format("nexo")
        .options(url=url, stream="paid_orders", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with nexo.connect(url) as client:
        return client.stream("paid_orders").info().partitions[0].next_offset


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "nexo://127.0.0.1:7654"
    with tempfile.TemporaryDirectory() as folder:
        print(f"{main(address, folder)} paid orders")
