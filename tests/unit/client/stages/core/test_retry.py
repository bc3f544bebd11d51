"""The schedule of attempts."""

from __future__ import annotations

import pytest

from understudy.client.stages import ConfigurationError, Retry
from understudy.client.stages.core.retry import chance_of


def test_by_default_a_message_has_one_attempt_and_six_more() -> None:
    delays = [Retry().delay_ms(failures) for failures in range(1, 8)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, None]


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(5, first=0.5, factor=3, most=2)
    assert [retry.delay_ms(failures) for failures in range(1, 6)] == [500, 1_500, 2_000, 2_000, None]


def test_chance_takes_off_at_most_the_jitter() -> None:
    """Not a tenth more or less: a schedule is kept within 10 % (S-33)."""
    chances = [chance_of(f"m{number}", 1) for number in range(1000)]
    delays = [Retry().delay_ms(1, chance) or 0 for chance in chances]
    assert 900 <= min(delays) < 910
    assert 990 < max(delays) <= 1_000
    assert chance_of("m1", 1) == chances[1] != chance_of("m1", 2)
    assert {Retry(jitter=0).delay_ms(1, chance) for chance in chances} == {1_000}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attempts": 0}, "attempts = 0"),
        ({"first": -1}, "first = -1"),
        ({"factor": 0.5}, "factor = 0.5"),
        ({"first": 5, "most": 4}, "most = 4"),
        ({"most": 1e9}, "most = 1000000000.0"),
        ({"first": float("nan")}, "first = nan"),
        ({"jitter": 1.5}, "jitter = 1.5"),
        ({"most": 901.0, "blocking": True}, "most = 901.0 s with blocking=True"),
    ],
)
def test_a_value_out_of_its_range_is_named(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Retry(**arguments)  # type: ignore[arg-type]  # attempts is an int
