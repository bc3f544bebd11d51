"""Place: the queues and the brokers that a command is about, by an application or by names."""

from __future__ import annotations

import attrs

from understudy.client.stages.application.application import Stages
from understudy.client.stages.broker.addresses import addresses_of
from understudy.client.stages.core.envelope import DEAD_LETTERS
from understudy.client.stages.core.letter import stage_queue
from understudy.client.stages.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class Place:
    """Where dead letters are looked for.

    Attributes:
        addresses: of the brokers.
        queues: of dead letters.
        application: declares the stages; None if names alone were given.
        named: the queues were named: one that is not there is an error.
    """

    addresses: list[str]
    queues: list[str]
    application: Stages | None = None
    named: bool = False

    @classmethod
    def of(cls, application: Stages | None, broker: list[str], queue: list[str], stage: list[str]) -> Place:
        """The place that the options of a command mean.

        Raises:
            ConfigurationError: they mean none; names the option.
        """
        if application is None:
            if not broker or not queue:
                raise ConfigurationError(
                    "give an application, for example shop:stages, or --broker amqp://host/ and --queue NAME.dead"
                )
            if stage:
                raise ConfigurationError(f"--stage {stage[0]}: stages are those of an application; give --queue")
        for name in stage:
            if application is not None and name not in application.stages:
                raise ConfigurationError(
                    f"--stage {name}: the application {application.name!r} has {', '.join(application.stages)}"
                )
        addresses = addresses_of(broker) if broker or application is None else application.addresses
        if queue or application is None:
            return cls(addresses=addresses, queues=queue, application=application, named=True)
        chosen = [name + DEAD_LETTERS for name in application.stages if not stage or name in stage]
        return cls(addresses=addresses, queues=chosen, application=application)

    def target(self, queue: str, to: str) -> str:
        """The queue into which letters of ``queue`` are reissued.

        Raises:
            ConfigurationError: neither its name nor ``to`` tells.
        """
        found = to or stage_queue(queue)
        if not found:
            raise ConfigurationError(
                f"queue {queue!r} does not end with {DEAD_LETTERS!r}: --to names the stage's queue"
            )
        return found

    def check_body(self, queue: str, body: bytes) -> None:
        """Check that a stage of the application can read a body; nothing is known of queues without one.

        Raises:
            ConfigurationError: the body is no message of the stage.
        """
        stage = self.application.stages.get(stage_queue(queue)) if self.application is not None else None
        if stage is None:
            return
        try:
            stage.codec.decode(body)
        except ValueError as error:
            raise ConfigurationError(
                f"the body is no message of stage {stage.name!r}: {error} (--unchecked edits it nevertheless)"
            ) from error
