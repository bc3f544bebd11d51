"""Script that ``spark-submit`` runs on a cluster: ``spark-submit ... submit.py audit --feed ...``. docs/pipeline.md, On a cluster.

spark-submit wants a file, and the console script ``understudy`` needs the broker's dependencies. This file needs the pipeline's
alone: PySpark, msgspec, attrs, typer, and plotly for a report. Executors run Spark's own expressions, and need no Python.
"""

from __future__ import annotations

import typer

from understudy.pipeline.commands.audit import audit
from understudy.pipeline.commands.report import report
from understudy.pipeline.commands.stream import stream

app = typer.Typer(add_completion=False, no_args_is_help=True)
for command in (audit, report, stream):
    app.command()(command)

if __name__ == "__main__":
    app(prog_name="understudy")
