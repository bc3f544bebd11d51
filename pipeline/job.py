"""The audit as a job for spark-submit: the same options as ``understudy audit``.

    spark-submit --master spark://host:7077 --py-files understudy.whl job.py --feed /shared/feed --work /shared/work

Executors need no Python package of ours: no rule runs Python there.
"""

from __future__ import annotations

import typer

from understudy.pipeline.audit_command import audit

if __name__ == "__main__":
    typer.run(audit)
