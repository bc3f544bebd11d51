"""docs/configuration.md names every key with its default and what may stand there, as the schema has them.

``python -m tests.unit.test_configuration_doc`` prints the tables.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import attrs
import pytest

from understudy.broker.config import loading, schema

DOC = Path(__file__).parents[2] / "docs" / "configuration.md"
ARRAYS: dict[str, type] = {"policy": schema.PolicyConfig, "users": schema.UserConfig}
NOT_A_SECTION = {"plugins", *ARRAYS}


def rows_of(section: type, prefix: str) -> list[str]:
    """A row of the table for each key of a section, its sub-tables included."""
    hints = get_type_hints(section, include_extras=True)
    found: list[str] = []
    for attribute in attrs.fields(section):
        reader = next(arg for arg in get_args(hints[attribute.name])[1:] if hasattr(arg, "read"))
        key = f"{prefix}{attribute.name}"
        of = getattr(reader, "of", None)
        if of is not None:
            found += rows_of(of, f"{key}.")
        else:
            found.append(f"| `{key}` | {shown(attribute.default)} | {reader.expected} |")
    return found


def shown(default: Any) -> str:
    if default is attrs.NOTHING:
        return "must be given"
    if default is None or default in ((), "") or not isinstance(default, int | float | str | tuple | Path):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and default >= 1 << 16 and default % (1 << 10) == 0:
        whole, unit = (default >> 20, "MiB") if default % (1 << 20) == 0 else (default >> 10, "KiB")
        return f'`"{whole}{unit}"`'
    if isinstance(default, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in default) + "]`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f'`"{default}"`' if isinstance(default, str | Path) else f"`{default}`"


def sections() -> dict[str, list[str]]:
    hints = get_type_hints(schema.Config, include_extras=True)
    found: dict[str, list[str]] = {}
    for attribute in attrs.fields(schema.Config):
        if attribute.name not in NOT_A_SECTION:
            found[attribute.name] = rows_of(get_args(hints[attribute.name])[0], "")
    found |= {name: rows_of(of, "") for name, of in ARRAYS.items()}
    return found


@pytest.mark.parametrize("section", sections())
def test_every_key_is_documented(section: str) -> None:
    text = DOC.read_text(encoding="utf-8")
    heading = f"## [[{section}]]" if section in ARRAYS else f"## [{section}]"
    assert heading in text
    part = text.split(heading, 1)[1].split("\n## ", 1)[0]
    documented = re.findall(r"^\| `.*$", part, re.MULTILINE)
    assert documented == sections()[section]


def test_what_the_document_shows_is_a_configuration() -> None:
    """Every whole file in it is read without complaint."""
    text = DOC.read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        loading.parse(example, file="docs/configuration.md", base=Path("/etc/understudy"))


def main() -> None:
    for section, rows in sections().items():
        print(f"## [{section}]\n\n| key | default | value |\n|---|---|---|")
        print("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
