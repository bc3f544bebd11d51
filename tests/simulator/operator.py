"""An operator's commands in the simulation: given to the core as the exchange ``understudy.admin`` would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.broker.plugin_api.plugin_commands import CommandRefusedError, CommandRequest

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

Answers = list[dict[str, Any]]


def command(node: SimNode, name: str, **arguments: Any) -> Answers:
    """Give a command to ``node``. Its answer, if one comes, is put into the list that is returned."""
    answers: Answers = []
    request = CommandRequest(
        arguments=arguments, user="operator", vhost="/", answer=lambda answer: answers.append(dict(answer))
    )

    def give() -> None:
        node.world.note(node.name, f"is told by an operator: {name} {arguments}")
        try:
            node.ha.carry_out(name, request)
        except CommandRefusedError as error:
            answers.append({"error": str(error)})

    node.run(give)
    return answers
