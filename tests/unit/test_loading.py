"""What the readers of files make of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hindsight.loading import LONGEST, Broken, Found, Item
from hindsight.loading.files import How, read, size_of
from hindsight.record import JsonObject


def found_in(folder: Path, name: str, content: str | bytes, how: How | None = None) -> list[Found]:
    """What reading a file with this content finds."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read(str(path), how or How()))


def fields(found: list[Found]) -> list[JsonObject]:
    """The arguments of all items; fails when anything is broken."""
    assert not [each for each in found if isinstance(each, Broken)]
    return [each.fields for each in found if isinstance(each, Item)]


def test_ndjson_gives_one_memory_a_line_and_names_the_line_that_is_broken(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf{"content": "a", "_error": "why"}\r\n\r\n"b"\n[1]\n{"c\n\xff\n{"content": "last"}'

    found = found_in(tmp_path, "notes.ndjson", text)

    assert [each for each in found if isinstance(each, Item)] == [
        Item("notes.ndjson:1", {"content": "a"}),
        Item("notes.ndjson:3", {"content": "b"}),
        Item("notes.ndjson:7", {"content": "last"}),
    ]
    broken = [each for each in found if isinstance(each, Broken)]
    assert [(each.place, each.raw) for each in broken] == [
        ("notes.ndjson:4", b"[1]"),
        ("notes.ndjson:5", b'{"c'),
        ("notes.ndjson:6", b"\xff"),
    ]


def test_a_line_over_the_limit_is_broken_and_the_next_one_is_read(tmp_path: Path) -> None:
    text = b'{"content": "' + b"x" * (2 * LONGEST) + b'"}\n{"content": "next"}\n'

    long, after = found_in(tmp_path, "notes.jsonl", text)

    assert isinstance(long, Broken)
    assert "2,097,152 bytes" in long.reason
    assert after == Item("notes.jsonl:2", {"content": "next"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'content,tags,mood\r\n"one, and\nmore","a, b",\r\n\r\ntwo,,good\r\n'),
        ("a.tsv", 'content\ttags\tmood\n"one, and\nmore"\ta, b\t\n\ntwo\t\tgood\n'),
    ],
)
def test_a_table_is_read_by_its_columns_names_and_keeps_other_columns_as_metadata(
    tmp_path: Path, name: str, text: str
) -> None:
    found = found_in(tmp_path, name, "\ufeff" + text)

    assert fields(found) == [
        {"content": "one, and\nmore", "tags": "a, b"},
        {"content": "two", "metadata": {"mood": "good"}},
    ]


def test_a_map_names_the_columns_that_are_fields(tmp_path: Path) -> None:
    how = How(columns={"content": "Note", "event_date": "When"})

    found = found_in(tmp_path, "a.csv", "When,Note\n2024-01-02,tea\n", how)

    assert fields(found) == [{"event_date": "2024-01-02", "content": "tea"}]


def test_a_table_without_content_says_which_columns_it_has(tmp_path: Path) -> None:
    [found] = found_in(tmp_path, "a.csv", "When,Note\n2024-01-02,tea\n")

    assert isinstance(found, Broken)
    assert "--map content=COLUMN" in found.reason
    assert "When, Note" in found.reason


def test_a_row_with_too_many_values_is_broken_and_the_next_one_is_read(tmp_path: Path) -> None:
    wrong, right = found_in(tmp_path, "a.csv", "content\na,b\nc\n")

    assert isinstance(wrong, Broken)
    assert wrong.place == "a.csv:2"
    assert right == Item("a.csv:3", {"content": "c"})


def test_json_may_be_a_list_of_objects_or_strings_one_object_or_lines(tmp_path: Path) -> None:
    listed = found_in(tmp_path, "a.json", '[{"content": "a"}, "b"]')
    single = found_in(tmp_path, "b.json", '{"content": "a"}')
    lines = found_in(tmp_path, "c.json", '{"content": "a"}\n{"content": "b"}\n')

    assert fields(listed) == fields(lines) == [{"content": "a"}, {"content": "b"}]
    assert fields(single) == [{"content": "a"}]


def test_an_element_that_is_no_memory_and_a_file_that_is_no_json_are_broken(tmp_path: Path) -> None:
    element = found_in(tmp_path, "a.json", '[1, "b"]')
    file = found_in(tmp_path, "b.json", "[1,")

    assert [type(each) for each in element] == [Broken, Item]
    assert [type(each) for each in file] == [Broken]


def test_markdown_is_cut_at_its_headings_and_tells_them(tmp_path: Path) -> None:
    text = "before\n# Plan\nWe start.\n## Food\nPasta.\n\nRice.\n```\n# a comment\n```\n## Empty\n# Other\nEnd.\n"

    found = found_in(tmp_path, "plan.md", text)

    assert [each["content"] for each in fields(found)] == [
        "before",
        "Plan\nWe start.",
        "Plan / Food\nPasta.\n\nRice.\n```\n# a comment\n```",
        "Other\nEnd.",
    ]
    assert {each["document_id"] for each in fields(found)} == {"plan.md"}


def test_markdown_can_be_cut_at_its_paragraphs(tmp_path: Path) -> None:
    found = found_in(tmp_path, "plan.md", "# Food\nPasta.\n\nRice.\n", How(by="paragraph"))

    assert [each["content"] for each in fields(found)] == ["Food\nPasta.", "Food\nRice."]


def test_front_matter_gives_tags_date_and_title(tmp_path: Path) -> None:
    front = "---\ntitle: 'Trip'\ndate: 2024-05-03\ntags:\n  - travel\n  - italy\n---\n"

    [found] = fields(found_in(tmp_path, "trip.md", front + "We went to Rome.\n"))

    assert found == {
        "document_id": "trip.md",
        "tags": ["travel", "italy"],
        "event_date": "2024-05-03",
        "metadata": {"title": "Trip"},
        "content": "We went to Rome.",
    }


def test_a_note_of_basic_memory_is_read_by_observation_and_relation(tmp_path: Path) -> None:
    text = (
        "---\ntitle: Coffee\ntype: note\npermalink: coffee\ntags: [brew]\n---\n# Coffee\n## Observations\n"
        "- [method] Pour over is best #filter\n- [ ] a task\n## Relations\n- relates_to [[Tea]] (both hot)\n"
    )

    found = found_in(tmp_path, "coffee.md", text)

    assert [(each["content"], each["context"], each["tags"]) for each in fields(found)] == [
        ("Coffee: Pour over is best", "method", ["brew", "filter"]),
        ("Coffee relates to Tea (both hot)", "relation", ["brew"]),
    ]


def test_plain_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    found = found_in(tmp_path, "a.txt", "\n\none\r\ntwo\r\n \r\n\nthree")

    assert found == [
        Item("a.txt:3", {"content": "one\ntwo", "document_id": "a.txt"}),
        Item("a.txt:7", {"content": "three", "document_id": "a.txt"}),
    ]


def test_a_chatgpt_export_gives_the_messages_of_the_branch_shown_last(tmp_path: Path) -> None:
    def node(parent: str | None, role: str, text: str, at: float) -> JsonObject:
        content = {"content_type": "text", "parts": [text, {"image": 1}]}
        return {"parent": parent, "message": {"author": {"role": role}, "create_time": at, "content": content}}

    mapping = {
        "root": {"parent": None, "message": None},
        "a": node("root", "system", "be kind", 0.0),
        "b": node("a", "user", "I like tea", 1714730400.5),
        "old": node("b", "assistant", "dropped", 1714730401.0),
        "c": node("b", "assistant", "Noted", 1714730402.0),
    }
    export = [{"conversation_id": "s1", "title": "Tea", "current_node": "c", "mapping": mapping}]

    found = found_in(tmp_path, "conversations.json", json.dumps(export))

    common = {"session_id": "s1", "metadata": {"title": "Tea"}}
    assert fields(found) == [
        {"content": "User: I like tea", "event_date": "2024-05-03T10:00:00.500000+00:00", **common},
        {"content": "Assistant: Noted", "event_date": "2024-05-03T10:00:02+00:00", **common},
    ]


def test_a_claude_export_gives_its_messages(tmp_path: Path) -> None:
    messages = [
        {"sender": "human", "text": "I like tea", "created_at": "2024-05-03T10:00:00Z"},
        {"sender": "assistant", "text": "", "content": [{"type": "text", "text": "Noted"}, {"type": "tool_use"}]},
    ]

    found = found_in(tmp_path, "a.json", json.dumps([{"uuid": "s1", "name": "", "chat_messages": messages}]))

    assert fields(found) == [
        {"content": "User: I like tea", "event_date": "2024-05-03T10:00:00Z", "session_id": "s1"},
        {"content": "Assistant: Noted", "session_id": "s1"},
    ]


def test_a_mem0_export_keeps_whose_memory_it_is_and_when_it_was_made(tmp_path: Path) -> None:
    memory = {
        "id": "1", "memory": "Likes tea", "user_id": "ann", "metadata": {"a": 1}, "categories": ["food"],
        "created_at": "2024-05-03T10:00:00-07:00",
    }  # fmt: skip

    found = found_in(tmp_path, "a.json", json.dumps({"results": [memory]}))

    assert fields(found) == [
        {
            "content": "Likes tea",
            "metadata": {"user_id": "ann", "a": 1},
            "tags": ["food"],
            "retained_at": "2024-05-03T10:00:00-07:00",
        }
    ]


def test_a_folder_is_read_in_the_order_of_names_without_hidden_and_foreign_files(tmp_path: Path) -> None:
    found_in(tmp_path, "notes/b.txt", "two")
    found_in(tmp_path, "notes/a/z.md", "one")
    found_in(tmp_path, "notes/.git/c.txt", "hidden")
    found_in(tmp_path, "notes/photo.png", b"\x89PNG")

    found = list(read(str(tmp_path / "notes"), How()))

    assert [(each["document_id"], each["content"]) for each in fields(found)] == [("a/z.md", "one"), ("b.txt", "two")]


def test_a_compressed_file_is_read_like_the_file_in_it(tmp_path: Path) -> None:
    found = found_in(tmp_path, "a.ndjson.gz", gzip.compress(b'{"content": "a"}\n'))

    assert fields(found) == [{"content": "a"}]


def test_a_file_of_unknown_format_is_broken_unless_the_format_is_said(tmp_path: Path) -> None:
    [unknown] = found_in(tmp_path, "a.dat", '{"content": "a"}\n')
    known = found_in(tmp_path, "a.dat", '{"content": "a"}\n', How(format="ndjson"))

    assert isinstance(unknown, Broken)
    assert "--format" in unknown.reason
    assert fields(known) == [{"content": "a"}]


def test_the_bytes_read_add_up_to_the_size_told(tmp_path: Path) -> None:
    found_in(tmp_path, "notes/a.csv", "content\n" + "tea\n" * 50_000)
    found_in(tmp_path, "notes/b.ndjson", '"tea"\n' * 50_000)
    sizes = list[int]()

    count = sum(1 for _ in read(str(tmp_path / "notes"), How(), sizes.append))

    assert count == 100_000
    assert sum(sizes) == size_of(str(tmp_path / "notes")) == 500_008
