"""The parts of an expression as functions of the metadata, in SQL's three-valued logic: True, False, None for NULL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hindsight.filters.patterns import like
from hindsight.filters.values import COMPARISONS, any_equal
from hindsight.record import JsonObject

Predicate = Callable[[JsonObject], bool]


@dataclass(frozen=True, slots=True)
class Term:
    """A part: its value for a record, whether it may stand as a condition, and whether every record gives the same."""

    evaluate: Callable[[JsonObject], object]
    boolean: bool = False
    constant: bool = False


def literal(value: object) -> Term:
    return Term(lambda metadata: value, boolean=value is None or isinstance(value, bool), constant=True)


def computed(function: Callable[[object], object], term: Term, boolean: bool = False) -> Term:
    """A function of one value, computed now if it can be."""
    argument = term.evaluate
    if term.constant:
        value = function(argument({}))
        return Term(lambda metadata: value, boolean, constant=True)
    return Term(lambda metadata: function(argument(metadata)), boolean)


def combined(function: Callable[[object, object], object], left: Term, right: Term) -> Term:
    """A condition on two values."""
    one, other = left.evaluate, right.evaluate
    return Term(lambda metadata: function(one(metadata), other(metadata)), boolean=True)


def compared(symbol: str, left: Term, right: Term) -> Term:
    return combined(COMPARISONS[symbol], left, right)


def negated(term: Term) -> Term:
    return computed(lambda value: None if value is None else not value, term, boolean=True)


def null_test(term: Term) -> Term:
    return computed(lambda value: value is None, term, boolean=True)


def all_of(terms: list[Term]) -> Term:
    """AND: False wins over NULL, NULL over True."""
    conditions = [term.evaluate for term in terms]

    def evaluate(metadata: JsonObject) -> object:
        result: object = True
        for condition in conditions:
            value = condition(metadata)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return Term(evaluate, boolean=True)


def any_of(terms: list[Term]) -> Term:
    """OR: True wins over NULL, NULL over False."""
    conditions = [term.evaluate for term in terms]

    def evaluate(metadata: JsonObject) -> object:
        result: object = False
        for condition in conditions:
            value = condition(metadata)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return Term(evaluate, boolean=True)


def matched(term: Term, pattern: object, ignore_case: bool) -> Term:
    """LIKE and ILIKE: NULL unless both are text."""
    if not isinstance(pattern, str):
        return computed(lambda value: None, term, boolean=True)
    matches = like(pattern, ignore_case)
    return computed(lambda text: matches(text) if isinstance(text, str) else None, term, boolean=True)


def array(terms: list[Term]) -> Term:
    members = [term.evaluate for term in terms]
    constant = all(term.constant for term in terms)
    return Term(lambda metadata: [member(metadata) for member in members], constant=constant)


def member_of(term: Term, members: Term) -> Term:
    """IN, of a list in parentheses, an array, or what `val` reads; NULL when that is no list."""
    if members.constant and isinstance(known := members.evaluate({}), list):
        for kind in ((str,), (int, float)):
            if known and all(type(member) in kind for member in known):
                return computed(_in_set(frozenset(known), kind), term, boolean=True)
    return combined(lambda value, found: any_equal(value, found) if isinstance(found, list) else None, term, members)


def _in_set(members: frozenset[object], kind: tuple[type, ...]) -> Callable[[object], bool | None]:
    # A filter may name thousands of ids, and all are of one kind: a look-up instead of a walk.
    return lambda value: value in members if type(value) in kind else None
