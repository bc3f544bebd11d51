"""Bugs that reviews have found, and no sweep: with each put in, the story that was written for it ends otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation import (
    test_branches,
    test_commands_before_a_close,
    test_cut_off_primary,
    test_false_acknowledgements,
    test_flapping_links,
    test_forgotten_outcomes,
    test_healing,
    test_refills_of_the_running,
    test_refusals,
    test_remade_store,
    test_step_down,
    test_transient_holes,
    test_transients_of_branches,
)
from tests.simulator.ledger import Violation
from tests.simulator.mutations import CAMPAIGN, MUTATIONS, mutated
from tests.simulator.sim_client import Closed

STORIES: dict[str, Callable[[], None]] = {
    "brought-without-is-not-told": test_transient_holes.test_who_was_brought_up_without_them_says_so_when_it_leads,
    "what-nobody-has-is-asked-for": test_transient_holes.test_a_joiner_is_not_held_to_what_the_primary_has_lost_itself,
    "holes-outlive-a-cut": test_healing.test_holes_that_are_cut_away_keep_nobody_out,
    "joiners-no-to-a-rollback-ends-its-link": (
        test_healing.test_who_leads_with_half_a_transaction_takes_it_back_although_nobody_is_with_it
    ),
    "credit-keeps-rollback-back": test_healing.test_a_rollback_reaches_who_refused_whatever_is_unacknowledged,
    "lost-copy-counts-until-it-is-removed": (
        test_healing.test_an_acknowledgement_does_not_count_of_who_has_lost_what_it_acknowledged
    ),
    "room-again-is-not-heard": test_healing.test_a_joiner_whose_disk_was_full_for_a_moment_is_listed,
    "base-on-no-disk-is-acknowledged": test_healing.test_what_a_catch_up_brought_counts_when_it_is_on_the_disk,
    "refill-of-the-running-only-adds": test_refills_of_the_running.test_what_was_deleted_unseen_goes_with_the_refill,
    "a-refill-is-ahead-of-the-log": (
        test_transient_holes.test_a_durable_exchange_that_was_declared_again_is_the_one_that_was_refilled
    ),
    "waiting-declarations-outlive-a-refill": (
        test_refills_of_the_running.test_what_was_declared_and_not_applied_goes_if_it_was_deleted_unseen
    ),
    "the-first-declaration-of-an-exchange-stays": (
        test_transient_holes.test_an_exchange_that_was_declared_again_is_the_durable_one
    ),
    "unknown-branches-are-answered-at-once": (
        test_branches.test_an_ex_primary_does_not_say_that_there_is_no_such_branch
    ),
    "a-branch-keeps-what-is-transient": (
        test_transients_of_branches.test_a_primary_that_has_restarted_alone_takes_it_from_all
    ),
    "a-refill-brings-what-an-epoch-has-ended": (
        test_transients_of_branches.test_a_refill_brings_nothing_that_an_epoch_has_ended
    ),
    "a-former-log-is-acknowledged": (
        test_false_acknowledgements.test_what_is_about_to_be_replaced_by_a_catch_up_is_not_acknowledged
    ),
    "a-link-is-progress": (test_flapping_links.test_whose_disk_hangs_and_whose_link_breaks_now_and_then_is_removed),
    "a-base-put-again-forgets-refusals": (test_refusals.test_a_base_that_is_put_again_does_not_take_a_refusal_away),
    "a-hole-weakens-every-vote": partial(
        test_refusals.test_a_restart_does_not_make_it_overlook_what_it_lacks_of_later_transactions, True
    ),
    "a-refounded-group-is-the-same": partial(
        test_remade_store.test_who_is_of_an_earlier_founding_is_not_taken_for_a_copy, True
    ),
    "reached-again-is-leading-still": (
        test_remade_store.test_a_primary_alone_in_its_set_confirms_nothing_before_it_has_read_that_it_leads
    ),
    "what-has-no-record-is-told-at-once": (
        test_cut_off_primary.test_it_confirms_no_message_that_its_successor_would_keep
    ),
    "a-stale-answer-releases-what-is-held": partial(
        test_commands_before_a_close.test_they_are_carried_out_in_order,
        test_commands_before_a_close.behind_a_declaration,
        "channel",
    ),
    "a-bar-ends-when-it-expires": partial(
        test_forgotten_outcomes.test_who_was_told_rolled_back_is_not_told_committed_later, "q"
    ),
    "what-was-not-sent-outlives-a-hand-over": (
        test_step_down.test_what_came_while_the_log_was_frozen_ends_with_the_core
    ),
    "a-failure-is-forgotten-untold": test_branches.test_a_failure_that_nobody_was_told_of_is_not_forgotten,
}


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_another_one_with_the_bug(name: str) -> None:
    story = STORIES[name]
    story()
    with mutated(name) as bug, pytest.raises((AssertionError, Violation, Closed)):
        story()
    assert bug.strikes


def test_each_has_its_story() -> None:
    assert STORIES.keys() == MUTATIONS.keys() - {*CAMPAIGN}
