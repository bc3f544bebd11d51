"""MetricsPage: ``/metrics``, the page that a Prometheus server scrapes.

A scrape takes a snapshot: `broker_metrics` and the plugins read what the core counts anyway. Nothing is told
to prometheus-client while messages flow, so it keeps no state; it writes the text (`metrics_text`). The page is
made in slices as every page that grows (`slices`): a family at a time, and long families by parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import BadQueryError, Page, Query, RunsInSlices, Steps

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PART: Final = 50
"""So many series of one family are written in a step."""


class MetricsPage:
    """Makes the page.

    Args:
        slices: what it is made by.
        broker: steps to the broker's families; told whether the queues are asked for one by one.
        plugins: each makes its families at once.
    """

    def __init__(
        self,
        slices: RunsInSlices,
        broker: Callable[[bool], Steps[list[Family]]],
        plugins: Sequence[Callable[[], Iterable[Family]]],
    ) -> None:
        self._slices = slices
        self._broker = broker
        self._plugins = plugins

    async def page(self, query: Query) -> Page:
        """The page; ``per_queue=1`` adds a series for each of the first queues.

        Raises:
            BadQueryError: another parameter, or another value of it.
        """
        unknown = query.keys() - {"per_queue"}
        if unknown:
            raise BadQueryError(f"no parameter {min(unknown)!r}; there is per_queue")
        per_queue = query.get("per_queue", "0")
        if per_queue not in ("0", "1"):
            raise BadQueryError(f"per_queue is 0 or 1, not {per_queue!r}")
        text = await self._slices.run(self._text(per_queue == "1"))
        return Page(200, text, CONTENT_TYPE)

    def _text(self, per_queue: bool) -> Steps[bytes]:
        families = yield from self._broker(per_queue)
        for plugin in self._plugins:
            families += plugin()
            yield
        from understudy.broker.server.web.metrics_text import family_text  # noqa: PLC0415  # a tenth of a broker's start

        parts = []
        for family in families:
            for first in range(0, len(family.samples), PART):
                text = family_text(family._replace(samples=family.samples[first : first + PART]))
                parts.append(text if not first else _without_head(text))
                yield
        return b"".join(parts)


def _without_head(text: bytes) -> bytes:
    """Without ``# HELP`` and ``# TYPE``: these stand once a family."""
    return text.split(b"\n", 2)[2]
