"""ConfigError: one thing that is wrong with a configuration, as the operator wrote it."""

from __future__ import annotations

from understudy.broker.errors import UnderstudyError


class ConfigError(UnderstudyError):
    """The configuration cannot be used; the broker does not start.

    Attributes:
        file: the file, as it was given; or the environment variable that gives the key.
        key: the dotted path, such as `link.secret` or `users[0].vhosts."/".write`; None if the file as a whole is at fault.
        problem: what is wrong with it.
        value: the value found, None if there is none or if it must not be shown.
        expected: what would be right, None if the problem says it.
        nearest: for an unknown key, the dotted path of the known one that is most like it.
    """

    def __init__(
        self,
        *,
        file: str,
        problem: str,
        key: str | None = None,
        value: object = None,
        expected: str | None = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(": ".join(part for part in (file, key, problem) if part is not None))
        self.file = file
        self.key = key
        self.problem = problem
        self.value = value
        self.expected = expected
        self.nearest = nearest

    def about(self, what: str) -> ConfigError:
        """The same error, which names the object that it is about."""
        return ConfigError(
            file=self.file,
            problem=f"{what}: {self.problem}",
            key=self.key,
            value=self.value,
            expected=self.expected,
            nearest=self.nearest,
        )

    def found_in(self, place: str) -> ConfigError:
        """The same error, of another file or of an environment variable."""
        return ConfigError(
            file=place,
            problem=self.problem,
            key=self.key,
            value=self.value,
            expected=self.expected,
            nearest=self.nearest,
        )
