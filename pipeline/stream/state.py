"""State: small tables that a query keeps from batch to batch, a folder a batch, beside Spark's checkpoint.

A batch that runs again reads the state before it, which is still there, and replaces what its earlier try has written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from understudy.pipeline.spark.literal_table import literal_table
from understudy.pipeline.stream.checkpoint import CheckpointError

_PREFIX: Final = "batch="


class State:
    """One table.

    Args:
        spark: the session.
        directory: of the table; a directory that all of Spark's workers reach.
        types: Spark's type of each column.
    """

    def __init__(self, spark: SparkSession, directory: Path, types: Mapping[str, str]) -> None:
        self._spark = spark
        self._directory = directory
        self._types = types
        self._schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())

    def before(self, batch: int) -> DataFrame:
        """The table as the batch before ``batch`` has left it; empty before batch 0.

        Raises:
            CheckpointError: it is gone.
        """
        if batch == 0:
            return literal_table(self._spark, [], self._types)
        path = self._directory / f"{_PREFIX}{batch - 1}"
        if not path.is_dir():
            raise CheckpointError(f"{path} is gone: without it the stream does not know what was open")
        return self._spark.read.schema(self._schema).parquet(str(path))

    def write(self, batch: int, rows: DataFrame) -> DataFrame:
        """Write the table as ``batch`` leaves it, and forget those that no batch needs any more; returns it as it is read."""
        path = self._directory / f"{_PREFIX}{batch}"
        rows.coalesce(1).write.mode("overwrite").parquet(str(path))
        for each in self._directory.glob(f"{_PREFIX}*"):
            if int(each.name.removeprefix(_PREFIX)) < batch - 1:
                shutil.rmtree(each)
        return self._spark.read.schema(self._schema).parquet(str(path))
