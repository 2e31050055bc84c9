"""Facts to be remembered, each with words that no other one has, and what asks for it by its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from hindsight.record import JsonObject

_LOT = 5  # facts that are forgotten by one call
_LETTERS = "bcdfghjkmnpqrtvwxz23456789"
_WORDS = (
    "amber anchor basket boulder bridge cabin candle carbon carpet castle chapel cinder copper cotton desert dragon"
    " engine fabric falcon feather forest garden ginger glacier granite hammer harbour helmet island jacket jungle"
    " kitchen ladder lantern lemon marble meadow needle orchard oyster paddle pebble pepper pillow planet pocket"
    " ribbon saddle salmon shadow shovel silver spider stable summit temple thunder timber tunnel turtle valley velvet"
    " village violet walnut window winter wizard"
).split()
# What is said, and what means it in other words to whoever knows English.
_SAID = (
    ("Alice keeps bees on the roof.", "who produces honey up there"),
    ("Our dentist moved to Elm Street.", "where to go with a toothache"),
    ("The quarterly invoice was never paid.", "which bill does somebody still owe"),
    ("Bob is afraid of flying.", "which man gets scared aboard planes"),
    ("The kids adopted a stray kitten.", "homeless young cat that children took in"),
    ("Mother bakes rye loaves on Sundays.", "who makes bread at the weekend"),
    ("The violinist broke a string during the concert.", "what happened to that musician on stage"),
    ("Snow closed the mountain pass.", "route blocked by weather"),
    ("He proposed to her beside the lighthouse.", "asked for marriage near a sea"),
    ("The database password is changed every month.", "how often are credentials rotated"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """`words` find it by its words alone, `meaning` by what it means; `lot` is what its lot is forgotten by."""

    text: str
    words: str
    meaning: str
    lot: str

    def arguments(self) -> JsonObject:
        """It as retain and a line of a load take it."""
        return {"content": self.text, "metadata": {"lot": self.lot}}


def parcels(chance: Random, mean: Callable[[str], str]) -> Iterator[Fact]:
    """Facts without end about parcels; `mean` makes the query of a text."""
    for lot in count():
        name = f"{_token(chance)}-{lot}"
        for _ in range(_LOT):
            token = _token(chance)
            text = f"The {token} parcel holds {', '.join(chance.sample(_WORDS, 8))}."
            yield Fact(text, token, mean(text), name)


def sayings(chance: Random) -> Iterator[Fact]:
    """Facts that are asked for in other words, each with some about parcels behind it; then those without end."""
    others = parcels(chance, str)
    for text, meaning in _SAID:
        yield Fact(text, text, meaning, _token(chance))
        for _ in range(chance.randrange(3)):
            yield next(others)
    yield from others


def _token(chance: Random) -> str:
    return "".join(chance.choices(_LETTERS, k=10))
