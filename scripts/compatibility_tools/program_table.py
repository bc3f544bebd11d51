"""The table of programs, and what their results mean: no I/O."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.report import table


@attrs.frozen(kw_only=True)
class Program:
    """A program that starts, works and ends while the primary is killed.

    Attributes:
        name: on the command line.
        package: whose version the row shows.
        language: in which it is written.
        file: in the folder of its language.
        requirements: of a Python program, name of its environment and of the file of pins.
        about: what the program uses, for people.
        limit_s: seconds for all of the program.
    """

    name: str
    package: str
    about: str
    language: Literal["python", "java", "node"] = "python"
    file: str = attrs.field()
    requirements: str = ""
    limit_s: float = 240.0

    @file.default
    def _file_of_name(self) -> str:
        return f"{self.name.replace('-', '_')}_program.py"


PROGRAMS: Final = (
    Program(
        name="celery",
        requirements="celery",
        package="celery",
        about="countdown, eta, retries, priorities, chord, autoscale",
    ),
    Program(
        name="celery-delays",
        requirements="celery",
        package="celery",
        about="native delayed delivery over quorum queues",
    ),
    Program(
        name="dramatiq", requirements="dramatiq", package="dramatiq", about="delays, retries, priorities, confirms"
    ),
    Program(name="taskiq", requirements="taskiq", package="taskiq-aio-pika", about="delays, retries, priorities"),
    Program(name="faststream", requirements="faststream", package="faststream", about="publisher, request and reply"),
    Program(name="aio-pika", requirements="aio-pika", package="aio-pika", about="RPC and Master"),
    Program(
        name="jms",
        package="rabbitmq-jms",
        about="JMS: transacted sessions over queues and topics, rollback, redelivery counts",
        language="java",
        file="JmsProgram.java",
    ),
    Program(
        name="java-rpc",
        package="amqp-client",
        about="RpcClient with direct reply-to, and RpcServer",
        language="java",
        file="RpcProgram.java",
    ),
    Program(
        name="spring",
        package="spring-rabbit",
        about="Spring AMQP: RabbitTemplate and a listener container, in transactions",
        language="java",
        file="SpringProgram.java",
    ),
    Program(
        name="node",
        package="amqp-connection-manager",
        about="a channel with confirms, and a consumer, that come back by themselves",
        language="node",
        file="amqp_connection_manager_program.mjs",
    ),
)


@attrs.frozen(kw_only=True)
class ProgramRow:
    """The result of a program.

    Attributes:
        lost: ids that were sent and never executed.
        doubled: executions beyond the first of an id: the libraries acknowledge late, so a kill repeats work.
        failed: facts of the program that do not hold.
        kills: of the primary.
        took_s: seconds.
    """

    name: str
    version: str
    sent: int
    lost: Sequence[str]
    doubled: int
    failed: Sequence[str]
    kills: int
    took_s: float

    @property
    def holds(self) -> bool:
        """True if the primary was killed, and nothing is lost and all facts hold."""
        return self.kills > 0 and self.sent > 0 and not self.lost and not self.failed


def judge_program(name: str, version: str, result: Mapping[str, Any], kills: int, took_s: float) -> ProgramRow:
    """The row of a program that has told its result.

    Args:
        name: of the program.
        version: of its package.
        result: ``sent``, a list of ids; ``done``, executions by id; ``facts``, booleans by name.
        kills: of the primary.
        took_s: seconds.

    Raises:
        CompatibilityError: the result lacks one of these, or names an execution of what was not sent.
    """
    try:
        sent, done, facts = result["sent"], result["done"], result["facts"]
    except KeyError as error:
        raise CompatibilityError(f"the result of the program {name} has no {error}") from error
    if strange := sorted(set(done) - set(sent)):
        raise CompatibilityError(f"the program {name} executed what was not sent: {', '.join(strange[:5])}")
    return ProgramRow(
        name=name,
        version=version,
        sent=len(sent),
        lost=[each for each in sent if each not in done],
        doubled=sum(done.values()) - len(done),
        failed=[fact for fact, holds in facts.items() if not holds],
        kills=kills,
        took_s=took_s,
    )


def programs_text(rows: Sequence[ProgramRow]) -> str:
    """A line a program."""
    cells = [
        [
            row.name,
            row.version,
            *map(str, (row.sent, len(row.lost), row.doubled, row.kills)),
            f"{row.took_s:.0f}",
            "ok" if row.holds else _complaint(row),
        ]
        for row in rows
    ]
    return "\n".join(table(["program", "version", "sent", "lost", "doubled", "kills", "seconds", ""], cells))


def _complaint(row: ProgramRow) -> str:
    said = [f"lost: {', '.join(row.lost[:5])}"] if row.lost else []
    said += [f"does not hold: {', '.join(row.failed)}"] if row.failed else []
    said += [] if row.kills else ["no primary was killed"]
    return "; ".join(said) or "nothing was sent"


def find_programs(names: Sequence[str]) -> list[Program]:
    """The programs of these names, all if there is none.

    Raises:
        CompatibilityError: there is no such program; the message names the nearest.
    """
    by_name = {program.name: program for program in PROGRAMS}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(by_name)}"
            raise CompatibilityError(f"no program is called {name!r}; {hint}")
    return [by_name[name] for name in dict.fromkeys(names)] or list(PROGRAMS)
