"""What the nouns that every layer speaks of promise."""

from __future__ import annotations

import pytest

from hindsight.record import BankId


@pytest.mark.parametrize("text", ["team", "a.b_c-d", "Team", "Équipe 7", "日本", "x-ff", "b-b-b", "z" * 100, "ü" * 50])
def test_a_bank_s_folder_tells_its_id(text: str) -> None:
    assert BankId.of_folder(BankId(text).folder) == BankId(text)


@pytest.mark.parametrize(
    "name", [BankId("ü" * 128).folder, "b-Team", "b-..", "b-", "x-zz", "x-ff", "team", "gone-0", ""]
)
def test_a_folder_that_does_not_tell_an_id_has_none(name: str) -> None:
    assert BankId.of_folder(name) is None
