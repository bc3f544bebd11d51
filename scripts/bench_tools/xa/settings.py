"""Names that both sides of a pipe know."""

from typing import Final

JOB: Final = "bench"
QUEUE: Final = "bench"
