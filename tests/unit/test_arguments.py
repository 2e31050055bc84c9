"""How arguments are read: forgivingly, never silently; every kind of argument, in every form that a model sends."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types

from hindsight.arguments import (
    Date,
    Filter,
    Flag,
    Json,
    Kind,
    Listed,
    OneOf,
    Text,
    Whole,
    argument,
    input_schema,
    read_arguments,
)
from hindsight.errors import ContentTooLarge, HindsightError, InvalidArgument, InvalidFilter
from hindsight.record import JsonObject

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
TEN = Whole(1, 100)
WORDS = OneOf(("world", "opinion"))
LIST = Listed(Text(most=8), 3)
OBJECT = Json(64)
KINDS: dict[str, Kind] = {
    "text": Text(most=8),
    "bytes": Text(most_bytes=8),
    "whole": TEN,
    "flag": Flag(),
    "word": WORDS,
    "date": Date(),
    "filter": Filter(),
    "list": LIST,
    "words": Listed(WORDS, 3),
    "object": OBJECT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A tool's arguments."""

    query: str = argument(Text(most=100), "What to look for")
    max_results: int = argument(TEN, "At most", default=10)
    tags: tuple[str, ...] = argument(LIST, "Labels", default=())
    exact: bool = argument(Flag(), "To the letter", default=False)
    since: str | None = argument(Date(), "From when", default=None)


def read(kind: Kind, value: object) -> Any:
    """What one argument is read as."""
    made = dataclasses.make_dataclass("Made", [("field", Any, argument(kind, "one"))], kw_only=True)
    return read_arguments(made, {"field": value})[0].field


def message(kind: Kind, value: object) -> str:
    """What is said about an argument that is refused."""
    with pytest.raises(HindsightError) as caught:
        read(kind, value)
    assert isinstance(caught.value, InvalidArgument | ContentTooLarge)
    assert caught.value.extra.get("argument") == "field"
    return caught.value.message


# Numbers


@pytest.mark.parametrize("value", [10, 10.0, "10", "10.0", " 10 ", "+10", "010", "10.000"], ids=repr)
def test_every_way_to_write_ten_is_ten(value: object) -> None:
    result = read(TEN, value)

    assert (result, type(result)) == (10, int)


@pytest.mark.parametrize(
    "value",
    [
        "ten", "12px", True, False, "", " ", 0, 101, -1, 10**30, 10.5, "10.5", "1e1", "0x10", "1_0", "٣", "１０", "1,0",
        float("inf"), float("nan"), -0.0, [], [10], {}, {"a": 1}, "9" * 5_000,
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_whole_number_in_range_is_refused_with_the_range(value: object) -> None:
    assert message(TEN, value).startswith("field must be a whole number from 1 to 100; got ")


@PATIENT
@given(st.integers(-(10**20), 10**20))
def test_a_number_is_read_when_and_only_when_it_is_in_range(number: int) -> None:
    for value in (number, str(number)):
        if 1 <= number <= 100:
            assert read(TEN, value) == number
        else:
            assert "from 1 to 100" in message(TEN, value)


# Flags and words


@pytest.mark.parametrize(("value", "right"), [(True, True), ("true", True), (" TRUE ", True), ("False", False)])
def test_true_and_false_may_be_words(value: object, right: bool) -> None:
    assert read(Flag(), value) is right


@pytest.mark.parametrize("value", [1, 0, "1", "yes", "", [], {}, 1.0])
def test_what_is_neither_true_nor_false_is_refused(value: object) -> None:
    assert message(Flag(), value).startswith("field must be true or false; got ")


@pytest.mark.parametrize("value", ["world", " World\n", "WORLD"])
def test_a_word_may_have_capitals_and_blanks_around(value: str) -> None:
    assert read(WORDS, value) == "world"


@pytest.mark.parametrize("value", ["fact", "", "world,opinion", True, 1, ["world"], {}, "\ud800"])
def test_another_word_is_refused_with_the_allowed_ones(value: object) -> None:
    assert message(WORDS, value).startswith("field must be one of world, opinion; got ")


# Text


@PATIENT
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip))
def test_all_valid_text_is_read_as_it_is(text: str) -> None:
    assert read(Text(most=8), text) == text


@pytest.mark.parametrize(
    "text",
    ["👩\u200d👩\u200d👧", "e\u0301", "a\0b", "\u202eabc", " a ", "a\u2028b", "\ufeff a", "\U0010ffff"],
    ids=ascii,
)
def test_odd_text_is_read_as_it_is(text: str) -> None:
    assert read(Text(), text) == text


@pytest.mark.parametrize("value", ["", " ", "\n\t\u3000\u00a0\u2028"])
def test_blank_text_is_refused(value: str) -> None:
    assert "not empty or only white space" in message(Text(), value)


@pytest.mark.parametrize("value", [7, True, 1.5, ["a"], {"a": 1}])
def test_what_is_no_text_is_refused(value: object) -> None:
    assert message(Text(), value) == f"field must be text; got {json.dumps(value)}"


def test_a_limit_in_characters_is_told_with_the_size() -> None:
    assert read(Text(most=8), "日" * 8) == "日" * 8
    assert "text of at most 8 characters, not 9" in message(Text(most=8), "日" * 9)


def test_a_limit_in_bytes_is_told_with_the_size_and_a_code_of_its_own() -> None:
    assert read(Text(most_bytes=6), "日日") == "日日"
    with pytest.raises(ContentTooLarge) as caught:
        read(Text(most_bytes=6), "日日a")
    assert caught.value.message == "field has 7 bytes; at most 6 are allowed"


@pytest.mark.parametrize("kind", [Text(), Date(), Filter(), LIST, OBJECT], ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize(
    "wrap", [lambda text: text, lambda text: [text], lambda text: {"a": text}, lambda text: {text: 1}]
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(kind: Kind, wrap: Any) -> None:
    told = message(kind, wrap("a\ud800b"))

    assert told.encode()  # what is said about it can be sent


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Text(), "a\udc00"), (LIST, ["\ud800"]), (OBJECT, {"a": "\ud800"}), (OBJECT, r'{"a": "\ud800"}')],
)
def test_a_lone_surrogate_is_called_by_its_name(kind: Kind, value: object) -> None:
    assert "valid Unicode, without lone surrogates" in message(kind, value)


# Dates and filters


@pytest.mark.parametrize(
    "value",
    ["2024-05-03", "2024-05-03T10:15:00Z", "2024-05-03T10:15:00+02:00", "2024-05-03T10:15", "0001-01-01", "9999-12-31"],
)
def test_a_date_is_kept_as_it_was_written(value: str) -> None:
    assert read(Date(), value) == value


@pytest.mark.parametrize("value", ["yesterday", "2024-02-30", "2024-13-01", "2024-05", "", "now", 20240503, True, 1.5])
def test_what_is_no_date_is_refused_with_what_came(value: object) -> None:
    assert json.dumps(value) in message(Date(), value)


def test_a_filter_becomes_a_predicate() -> None:
    predicate = read(Filter(), "CAST(val('$.team') AS text) = 'sales'")

    assert [predicate({"team": "sales"}), predicate({"team": "support"}), predicate({})] == [True, False, False]


@pytest.mark.parametrize("value", ["", "val(", "1 + ", "'text'"])
def test_what_is_no_filter_is_refused_with_the_place(value: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        read(Filter(), value)
    assert "at character" in caught.value.message


# Lists and objects


@pytest.mark.parametrize(
    "value",
    [
        ["alpha", "beta"],
        "alpha, beta",
        "alpha,beta",
        ' ["alpha", "beta"]',
        ",alpha,, beta ,",
        ["alpha", "beta", "alpha"],
    ],
)
def test_every_way_to_write_two_tags_is_two_tags(value: object) -> None:
    assert read(LIST, value) == ("alpha", "beta")


@pytest.mark.parametrize("value", [[], "", "[]", " , "])
def test_a_list_may_be_empty(value: object) -> None:
    assert read(LIST, value) == ()


def test_a_comma_within_a_value_needs_a_proper_list() -> None:
    assert read(LIST, ["a, b"]) == read(LIST, '["a, b"]') == ("a, b",)


@pytest.mark.parametrize(
    "value", [5, True, {"a": 1}, ["a"] * 4, "a,b,c,d", "[" * 100_000], ids=lambda value: repr(value)[:9]
)
def test_what_is_no_short_list_is_refused(value: object) -> None:
    assert message(LIST, value).startswith("field must be a list")


@pytest.mark.parametrize("value", ['["a", ', "[1]", [1], [True], [None], [["a"]], ["123456789"], [""], ["a", " "]])
def test_a_list_with_a_wrong_value_is_refused(value: object) -> None:
    assert message(LIST, value).startswith("field must be a list")


def test_a_wrong_word_in_a_list_is_refused_with_the_allowed_ones() -> None:
    assert "a list whose every value is one of world, opinion" in message(Listed(WORDS, 3), ["world", "fact"])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aé日😀\0"\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@PATIENT
@given(st.dictionaries(st.text("aé日\0", max_size=5), JSON, max_size=4))
def test_an_object_is_read_as_given_also_from_text(value: JsonObject) -> None:
    kind = Json(1_000_000)

    assert read(kind, value) == read(kind, json.dumps(value)) == value


def test_the_size_of_an_object_is_bounded_in_bytes_of_utf_8() -> None:
    assert read(OBJECT, {"a": "日" * 18})
    assert "at most 64 bytes, not 66" in message(OBJECT, {"a": "日" * 19})


@pytest.mark.parametrize(
    "value",
    [
        [], [1], "[1]", "text", "", 5, True, "null", '{"a": NaN}', {"a": float("inf")}, '{"a": 1e999}', "{'a': 1}",
        '{"a": ' + "9" * 5_000 + "}", "[" * 100_000,
    ],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
def test_what_is_no_object_is_refused(value: object) -> None:
    assert message(OBJECT, value).startswith("field must be a JSON object")


@pytest.mark.parametrize("levels", [101, 300])
def test_an_object_nested_too_deep_to_be_sent_back_is_refused(levels: int) -> None:
    nested = '{"a":' * levels + "1" + "}" * levels

    assert "a JSON object of at most 100 levels" in message(Json(16 * 1024), nested)
    assert "a JSON object of at most 100 levels" in message(Json(16 * 1024), json.loads(nested))


def test_an_object_of_a_hundred_levels_is_read() -> None:
    assert read(Json(16 * 1024), '{"a":' * 100 + "1" + "}" * 100)


# All together


def test_what_is_not_given_or_null_takes_its_default() -> None:
    given = {"query": "tea", "max_results": None, "tags": None}

    assert read_arguments(Example, given) == (Example(query="tea"), [])


@pytest.mark.parametrize("given", [{}, {"query": None}])
def test_what_is_required_and_missing_is_named(given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_arguments(Example, given)
    assert caught.value.message == "query is required and was not given"
    assert caught.value.extra == {"argument": "query"}


def test_of_very_many_unknown_arguments_some_are_named_and_the_rest_counted() -> None:
    _, warnings = read_arguments(Example, {"query": "tea"} | {f"querx{number}": 1 for number in range(20_000)})

    assert len(warnings) == 11
    assert warnings[-1] == "19990 more arguments are not known and were ignored"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_result", "did you mean 'max_results'?"),
        ("Query", "did you mean 'query'?"),
        ("zzz", "known are query, max_results, tags, exact, since"),
        ("\ud800", "known are query"),
        ("x" * 10_000, "known are query"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_an_unknown_argument_is_ignored_with_a_warning_that_names_the_nearest(name: str, hint: str) -> None:
    arguments, [warning] = read_arguments(Example, {"query": "tea", name: 1})

    assert arguments == Example(query="tea")
    assert "is not known and was ignored" in warning
    assert hint in warning
    assert len(warning.encode()) < 300


def test_the_schema_tells_types_bounds_defaults_and_what_is_required() -> None:
    assert input_schema(Example) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 100, "description": "What to look for"},
            "max_results": {
                "type": "integer", "minimum": 1, "maximum": 100, "description": "At most", "default": 10,
            },
            "tags": {
                "type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3, "description": "Labels",
            },
            "exact": {"type": "boolean", "description": "To the letter", "default": False},
            "since": {"type": "string", "description": "From when"},
        },
        "required": ["query"],
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_valid_schema(kind: Kind) -> None:
    Draft202012Validator.check_schema(json.loads(json.dumps(kind.schema())))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
)


@PATIENT
@given(st.sampled_from(sorted(KINDS)), ANYTHING)
def test_whatever_comes_is_read_or_refused_by_name_in_a_short_message_that_can_be_sent(
    kind: str, value: object
) -> None:
    told = refused(KINDS[kind], value)

    assert told is None or isinstance(told, InvalidFilter) or told.extra == {"argument": "field"}
    assert told is None or len(told.message.encode()) < 1_000


VISIBLE = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=2)
PROPER = st.one_of(
    st.tuples(st.just("text"), VISIBLE),
    st.tuples(st.just("bytes"), VISIBLE),
    st.tuples(st.just("whole"), st.integers(1, 100)),
    st.tuples(st.just("flag"), st.booleans()),
    st.tuples(st.just("word"), st.sampled_from(WORDS.words)),
    st.tuples(st.just("list"), st.lists(VISIBLE, max_size=3, unique=True)),
    st.tuples(st.just("words"), st.lists(st.sampled_from(WORDS.words), max_size=2, unique=True)),
    st.tuples(st.just("object"), st.dictionaries(VISIBLE, st.none() | st.booleans() | st.integers(-9, 9), max_size=2)),
)


@PATIENT
@given(PROPER)
def test_a_proper_value_fits_the_schema_and_is_read_as_it_is(given: tuple[str, object]) -> None:
    kind, value = KINDS[given[0]], given[1]

    assert Draft202012Validator(kind.schema()).is_valid(value)
    assert read(kind, value) == (tuple(value) if isinstance(value, list) else value)


def refused(kind: Kind, value: object) -> HindsightError | None:
    """Why an argument is refused; None when it is read."""
    try:
        read(kind, value if value is not None else "")
    except HindsightError as error:
        return error
    return None
