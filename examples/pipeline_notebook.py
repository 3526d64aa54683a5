"""A notebook-style look at a stream: cells of SQL, and a chart in the terminal.

Run a server (``nexo serve``), then this file, or paste the cells into a notebook.
"""

# %% A stream with an hour of temperatures
from __future__ import annotations

import math
import os
from pathlib import Path

import nexo
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pyspark_nexo import register_views, session
from pyspark_nexo.pipeline import Pipeline

url = os.environ.get("NEXO_URL", "nexo://127.0.0.1:7654")
lake = Lake(LakeSettings(Path(os.environ.get("NEXO_LAKE_PATH", "data/lake"))))

with nexo.connect(url) as client:
    sensors = client.stream("sensors").create(tiering=True)
    sensors.publish_many(
        [{"minute": n, "celsius": round(20 + 5 * math.sin(n / 9), 2)} for n in range(60)],
        keys=[f"room{n % 3}" for n in range(60)],
    )

# %% Take it into the lake, and look at it with SQL
spark = session("local[2]", app="notebook")
Pipeline(spark, lake, url, streams=["sensors"]).run_once()
register_views(spark, lake, url, streams=["sensors"])
readings = spark.sql("""
    select minute div 4 * 4 as minute, avg(celsius) as celsius from (
        select cast(get_json_object(value, '$.minute') as int) as minute,
               cast(get_json_object(value, '$.celsius') as double) as celsius
        from stream_messages where topic = 'sensors')
    group by 1 order by 1
""").collect()

# %% Draw it
for row in readings:
    print(f"{row.minute:>3} min {row.celsius:6.2f} °C {'█' * round((row.celsius - 14) * 4)}")

# %%
spark.stop()
