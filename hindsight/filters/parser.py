"""The grammar, by recursive descent: each method reads one rule of docs/filters.md and gives it compiled."""

from __future__ import annotations

from collections.abc import Callable

from hindsight.errors import InvalidFilter
from hindsight.filters.evaluation import (
    Predicate,
    Term,
    all_of,
    any_of,
    array,
    combined,
    compared,
    computed,
    literal,
    matched,
    member_of,
    negated,
    null_test,
)
from hindsight.filters.lexer import Token, content, refusal, tokenize
from hindsight.filters.paths import any_match, first_match, parse_path
from hindsight.filters.values import CASTS, COMPARISONS, contains, number, overlaps

LONGEST = 256  # characters of a pattern: matching it costs as many steps a character of the text
DEEPEST = 64
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARISON = "a comparison (=, !=, <, <=, >, >=, LIKE, ILIKE, IN, IS NULL, CONTAINS, OVERLAPS)"
_VALUE = "a value (val('$.name'), exists('$.name'), CAST(… AS …), 'text', a number, TRUE, FALSE, NULL, '(' or '[')"
_TYPES = "a type (text, integer, numeric, boolean, date or timestamp)"


def parse_filter(expression: str) -> Predicate:
    """The expression as a function of a memory's metadata. Raises InvalidFilter with `position` and `expected`."""
    evaluate = _Parser(tokenize(expression)).filter().evaluate
    return lambda metadata: evaluate(metadata) is True


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def filter(self) -> Term:
        term = self._disjunction()
        self._check(term)
        if self._token.kind != "end":
            raise self._expected("AND, OR or the end")
        return term

    def _disjunction(self) -> Term:
        first = self._conjunction()
        return any_of(self._more("OR", first, self._conjunction)) if self._at("OR") else first

    def _conjunction(self) -> Term:
        first = self._negation()
        return all_of(self._more("AND", first, self._negation)) if self._at("AND") else first

    def _more(self, word: str, first: Term, part: Callable[[], Term]) -> list[Term]:
        self._check(first)
        terms = [first]
        while self._accept(word):
            terms.append(part())
            self._check(terms[-1])
        return terms

    def _negation(self) -> Term:
        count = 0
        while self._accept("NOT"):
            count += 1
        term = self._comparison()
        if count:
            self._check(term)
        return negated(term) if count % 2 else term

    def _comparison(self) -> Term:
        left = self._value()
        if self._at(*COMPARISONS):
            return compared(self._advance().symbol, left, self._value())
        if self._accept("CONTAINS"):
            return combined(contains, left, self._value())
        if self._accept("OVERLAPS"):
            return combined(overlaps, left, self._value())
        if self._accept("IS"):
            return self._null_test(left)
        return self._like_or_in(left)

    def _null_test(self, left: Term) -> Term:
        inverse = self._accept("NOT")
        self._expect("NULL", "NULL" if inverse else "NULL or NOT NULL")
        return negated(null_test(left)) if inverse else null_test(left)

    def _like_or_in(self, left: Term) -> Term:
        inverse = self._accept("NOT")
        if self._at("LIKE", "ILIKE"):
            word = self._advance().symbol
            term = matched(left, self._pattern(), ignore_case=word == "ILIKE")
        elif self._accept("IN"):
            term = member_of(left, self._members(")") if self._accept("(") else self._value())
        elif inverse:
            raise self._expected("LIKE, ILIKE or IN")
        else:
            return left
        return negated(term) if inverse else term

    def _pattern(self) -> object:
        # A constant, for what it costs to read a pattern must not be paid for every record.
        token = self._token
        pattern = self._value()
        if not pattern.constant:
            raise refusal(token.position, "a pattern in quotes, such as 'sales%'", token.shown())
        found = pattern.evaluate({})
        if isinstance(found, str) and len(found) > LONGEST:
            raise refusal(token.position, f"a pattern of at most {LONGEST} characters", f"one of {len(found):,}")
        return found

    def _value(self) -> Term:
        token = self._token
        if self._at("CAST", "VAL", "EXISTS", "(", "["):
            return self._nested()
        self._advance()
        if token.kind == "text":
            return literal(content(token.text))
        if token.kind == "number" and (value := number(token.text)) is not None:
            return literal(value)
        if token.symbol in _CONSTANTS:
            return literal(_CONSTANTS[token.symbol])
        raise refusal(token.position, _VALUE, token.shown())

    def _nested(self) -> Term:
        opening = self._advance()
        self._depth += 1
        if self._depth > DEEPEST:
            message = f"at character {opening.position}: nested deeper than {DEEPEST} levels"
            raise InvalidFilter(message, position=opening.position, expected=f"at most {DEEPEST} levels")
        match opening.symbol:
            case "(":
                term = self._disjunction()
                self._close(term)
            case "[":
                term = array([]) if self._accept("]") else self._members("]")
            case "CAST":
                term = self._cast()
            case function:
                term = self._path(function)
        self._depth -= 1
        return term

    def _members(self, closing: str) -> Term:
        terms = [self._value()]
        while self._accept(","):
            terms.append(self._value())
        self._expect(closing, f"',' or '{closing}'")
        return array(terms)

    def _close(self, term: Term) -> None:
        if not term.boolean and not self._at(")"):
            raise self._expected(f"{_COMPARISON} or ')'")
        self._expect(")", "AND, OR or ')'")

    def _cast(self) -> Term:
        self._expect("(", "'('")
        term = self._disjunction()
        self._expect("AS", "AS")
        first = self._token
        words = []
        while self._token.kind == "word":
            words.append(self._advance().symbol)
        name = " ".join(words)
        if name not in CASTS:
            raise refusal(first.position, _TYPES, first.shown())
        self._expect(")", "')'")
        return computed(CASTS[name], term, boolean=name in ("BOOLEAN", "BOOL"))

    def _path(self, function: str) -> Term:
        self._expect("(", "'('")
        if self._token.kind != "text":
            raise self._expected("a path in quotes, such as '$.name'")
        steps = parse_path(self._advance())
        self._expect(")", "')'")
        return Term(any_match(steps), boolean=True) if function == "EXISTS" else Term(first_match(steps))

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _advance(self) -> Token:
        token = self._token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _at(self, *symbols: str) -> bool:
        return self._token.symbol in symbols

    def _accept(self, symbol: str) -> bool:
        if self._token.symbol != symbol:
            return False
        self._advance()
        return True

    def _expect(self, symbol: str, named: str) -> None:
        if not self._accept(symbol):
            raise self._expected(named)

    def _check(self, term: Term) -> None:
        if not term.boolean:
            raise self._expected(_COMPARISON)

    def _expected(self, what: str) -> InvalidFilter:
        return refusal(self._token.position, what, self._token.shown())
