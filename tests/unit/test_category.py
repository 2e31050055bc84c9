"""The category read out of a text: right on labelled sentences it was not written for, quiet on everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindsight.record import MemoryType
from hindsight.understanding.category import category_of

SENTENCES = Path(__file__).with_name("labelled_sentences.tsv")


def labelled(part: str) -> list[tuple[str, MemoryType]]:
    rows = [line.split("\t") for line in SENTENCES.read_text(encoding="utf-8").splitlines()[1:]]
    return [(text, MemoryType(label)) for where, label, text in rows if where == part]


@pytest.mark.parametrize(("part", "least"), [("used", 0.97), ("held_out", 0.9)])
def test_labelled_sentences_get_their_category(part: str, least: float) -> None:
    sentences = labelled(part)

    wrong = [(text, label, category_of(text)) for text, label in sentences if category_of(text) != label]

    assert len(sentences) >= 100
    assert 1 - len(wrong) / len(sentences) >= least, wrong


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n\n ",
        "???",
        "🙂",
        "Ich denke, dass das eine gute Idee ist.",
        "Ayer fui al dentista.",
        "Je pense que c'est nul.",
        "我昨天去了北京。",
        "def main(): return 1",
        "https://example.com/a?b=c",
    ],
)
def test_what_the_rules_cannot_read_is_world(text: str) -> None:
    assert category_of(text) is MemoryType.WORLD


def test_the_speaker_in_front_does_not_change_the_category() -> None:
    texts = ["I think the plan is risky.", "I fixed the pump yesterday.", "I have two sisters."]

    assert [category_of(f"Dr. Jane: {text}") for text in texts] == [category_of(text) for text in texts]


def test_only_the_opening_counts() -> None:
    facts = "The gateway listens on port 8443. It speaks TLS. It has two cores. "

    assert category_of(facts + "I think it is awful.") is MemoryType.WORLD


@given(st.text())
def test_any_text_has_a_category(text: str) -> None:
    assert category_of(text) in set(MemoryType)
