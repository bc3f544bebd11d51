"""Makes the adapter of each kind; a kind's library is imported only if a profile uses it."""

from __future__ import annotations

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.profile import ResourceConfig
from understudy.xa.resource_managers.port import ResourceManager


def make_resource_manager(config: ResourceConfig) -> ResourceManager:
    """The adapter of one resource manager, not open yet.

    Raises:
        ConfigError: the library of its kind is not installed.
    """
    try:
        match config.kind:
            case "amqp":
                from understudy.xa.resource_managers.broker import BrokerResource  # noqa: PLC0415  # see the head

                return BrokerResource(config.name, config.options)
            case "postgresql":
                from understudy.xa.resource_managers.postgresql import PostgresResource  # noqa: PLC0415  # see the head

                return PostgresResource(config.name, config.options)
            case "dbapi":
                from understudy.xa.resource_managers.dbapi import DbapiResource  # noqa: PLC0415  # see the head

                return DbapiResource(config.name, config.options)
            case "scripted":
                from understudy.xa.resource_managers.scripted import ScriptedResource  # noqa: PLC0415  # see the head

                return ScriptedResource(config.name, config.options)
            case _:
                raise ConfigError(f"resource manager {config.name}: kind {config.kind} has no adapter here")
    except ImportError as error:
        raise ConfigError(
            f"resource manager {config.name} of kind {config.kind} needs a library that is not installed ({error}): "
            "pip install 'understudy[xa]'"
        ) from error
