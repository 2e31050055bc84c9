"""Links between memories and their successors: which ones hold, and what stands for those that do not."""

from __future__ import annotations

import pytest

from hindsight.ledger.links import Link, mended

WHOLE = {"a": Link(1, None, "b"), "b": Link(2, "a", "c"), "c": Link(3, "b", None)}


def test_links_that_both_sides_tell_stay() -> None:
    assert mended(WHOLE) == {}
    assert mended({}) == {}


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ({"a": Link(1, None, "x")}, {"a": Link(1)}),
        ({"a": Link(1, "x", None)}, {"a": Link(1)}),
        ({"a": Link(1, None, "b"), "b": Link(2)}, {"b": Link(2, "a", None)}),
        ({"a": Link(1), "b": Link(2, "a", None)}, {"a": Link(1, None, "b")}),
        ({"a": Link(1, None, "x"), "b": Link(2, "a", None)}, {"a": Link(1, None, "b")}),
        ({"a": Link(1, "b", "b"), "b": Link(2, "a", "a")}, {"a": Link(1, None, "b"), "b": Link(2, "a", None)}),
        ({"a": Link(1, "a", "a")}, {"a": Link(1)}),
    ],
    ids=["to nobody", "from nobody", "the new one forgot", "the old one forgot", "garbled", "in a circle", "its own"],
)
def test_a_link_that_does_not_hold_is_completed_or_cleared(said: dict[str, Link], instead: dict[str, Link]) -> None:
    whole = {**said, **instead}

    assert mended(said) == instead
    assert mended(whole) == {}


def test_of_several_that_claim_a_place_the_one_that_both_sides_tell_has_it() -> None:
    said = {**WHOLE, "d": Link(4, "a", None), "e": Link(5, None, "c")}

    assert mended(said) == {"d": Link(4), "e": Link(5)}
