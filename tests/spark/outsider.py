"""Another Spark, with Iceberg's own runtime: runs each line of its input as SQL, answers in JSON.

``python outsider.py JARS SETTINGS``, with a PySpark on its path; the settings are those of the
how-to, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalog.nexo.cache-enabled": "false",
}


def main(jars: str, settings: str) -> None:
    found = ",".join(str(path) for path in sorted(Path(jars).glob("*.jar")))
    conf = {**_CONF, "spark.jars": found, **json.loads(settings)}
    building: Any = SparkSession.builder
    for name, value in conf.items():
        building = building.config(name, value)
    spark = building.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _say({"rows": []})
    for line in sys.stdin:
        try:
            rows = [list(row) for row in spark.sql(line).collect()]
            _say({"rows": rows})
        except Exception as error:  # whatever Spark raises is the test's to judge
            causes = [each for each in str(error).splitlines() if "\tat " not in each]
            _say({"error": "\n".join(causes)[:2000]})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
