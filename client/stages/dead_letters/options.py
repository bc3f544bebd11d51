"""Options that the commands of ``understudy dlq`` share."""

from __future__ import annotations

from typing import Annotated

import typer

Application = Annotated[
    str, typer.Argument(metavar="[MODULE:NAME]", help="The application, for example shop:stages; or give --queue.")
]
Broker = Annotated[list[str] | None, typer.Option("--broker", help="Address of a broker; may be given several times.")]
Queue = Annotated[list[str] | None, typer.Option("--queue", help="A dead-letter queue; may be given several times.")]
Stage = Annotated[list[str] | None, typer.Option("--stage", help="A stage of the application; default: all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Look at so many letters of each queue; default: all.")
]
Id = Annotated[
    list[str] | None, typer.Option("--id", help="The letter of this message id; may be given several times.")
]
Group = Annotated[
    list[str] | None, typer.Option("--group", help="All letters of a group, as `dlq list` names it; likewise.")
]
All = Annotated[bool, typer.Option("--all", help="All letters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it the command tells what it would do.")]
Rate = Annotated[float, typer.Option("--rate", min=0.01, max=1e6, help="Messages a second, at most.")]
By = Annotated[str, typer.Option("--by", help="Who does it, for the record; default: user@host.")]
