"""docs/testing.md names tests that exist, every row of the ancestor's ha_tests.py, every crash point of replication."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulator import checkers, mutations, workloads
from tests.simulator.knobs import ALL_FAULTS, ALL_WORKLOADS, BANK
from tests.simulator.mutations import CAMPAIGN, Mutation
from tests.simulator.tampering import complaints_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
CHECKERS = ROOT / "tests" / "simulator" / "checkers"
NAMED = sorted(set(re.findall(r"([\w/]+\.py)::(\w+)", TEXT)))
ANCESTOR = re.findall(
    r"\w+",
    """
replication sync send_receive failover_python heartbeat_python failover_cpp backup_failover empty_backup_failover
qpid_config_replication standalone_queue_replica standalone_queue_replica_failover lvq ring reject priority
priority_fairshare priority_ring backup_acquired replicate_default replicate_binding invalid_replication exclusive_queue
auto_delete_exclusive broker_info auth alternate_exchange priority_reroute delete_missing_response delete_qpid_4285
auto_delete_failover auto_delete_close expired missed_recreate resource_limit_bug failover_send_receive tx_send_receive
qmf_order max_queues queue_hold expected_backup_timeout join_ready_cluster stalled_backup store_recovery catchup_store
tx_simple_commit tx_simple_rollback tx_simple_failure tx_join_leave tx_block_threads other_tx_tests tx_enq_notx_deq
tx_enq_notx_deq_qpid_send tx_simple_failover tx_unknown_failover tx_no_backups tx_backup_fail
    """,
)


def has_mutations(name: str) -> bool:
    """True for a module of `mutations` that holds known bugs."""
    module = vars(mutations)[name]
    return isinstance(module, ModuleType) and any(isinstance(each, Mutation) for each in vars(module).values())


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part)
def test_a_named_test_exists(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file()
    assert name.startswith("test_")
    assert name in functions(path)


def test_many_are_named() -> None:
    assert len(NAMED) > 50


@pytest.mark.parametrize("row", ANCESTOR)
def test_every_row_of_the_ancestor_has_a_test_or_a_reason(row: str) -> None:
    (cell,) = re.findall(rf"^\| {row} \| (.*) \|$", TEXT, re.MULTILINE)
    assert "::" in cell or re.match(r"- \w", cell)


@pytest.mark.parametrize("number", range(31, 41))
def test_every_crash_point_has_a_test(number: int) -> None:
    (cell,) = re.findall(rf"^\| CP-{number} .* \| (.*) \|$", TEXT, re.MULTILINE)
    assert f"test_crash_points.py::test_cp_{number}_" in cell


@pytest.mark.parametrize("number", [20, 32, 33])
def test_every_crash_point_of_a_branch_has_a_test(number: int) -> None:
    (cell,) = re.findall(rf"^\| (?:Of a branch, )?CP-{number}.* \| (.*test_branches.*) \|$", TEXT, re.MULTILINE)
    assert f"test_branches.py::test_cp_{number}_" in cell


def test_what_the_simulator_has_is_told() -> None:
    assert [kind for kind in ALL_FAULTS if f"`{kind}`" not in TEXT] == []
    assert checkers.__doc__ is not None
    listed = re.findall(r"^``(\w+)``", checkers.__doc__, re.MULTILINE)
    assert listed
    assert [name for name in listed if f"| `{name}` |" not in TEXT] == []
    assert f"{len(CAMPAIGN)} of them" in TEXT


@pytest.mark.parametrize(
    ("listing", "there"),
    [
        (checkers, {path.stem for path in CHECKERS.glob("*.py") if complaints_of(f"checkers/{path.stem}")}),
        (mutations, {name for name in vars(mutations) if has_mutations(name)} - {"reviewed", "overlooked"}),
        (workloads, {BANK, *ALL_WORKLOADS}),
    ],
    ids=["checkers", "mutations", "workloads"],
)
def test_the_table_of_a_room_of_the_simulator_is_complete(listing: ModuleType, there: set[str]) -> None:
    assert set(re.findall(r"^``(\w+)``", listing.__doc__ or "", re.MULTILINE)) == there


@pytest.mark.parametrize("checker", re.findall(r"^``(\w+)``", checkers.__doc__ or "", re.MULTILINE))
def test_the_promises_of_a_checker_are_those_of_its_complaints(checker: str) -> None:
    complaints = complaints_of(f"checkers/{checker}")
    promises = ", ".join(sorted({each.promise for each in complaints if re.fullmatch(r"G\d", each.promise)})) or "-"
    assert checkers.__doc__ is not None
    assert re.search(rf"^``{checker}`` +{promises}  ", checkers.__doc__, re.MULTILINE)
    assert f"| `{checker}` | {promises} |" in TEXT
