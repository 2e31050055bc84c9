"""Markdown: a memory per section or paragraph; notes of basic-memory by their observations and relations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from hindsight.loading import Found, Item, lines_of
from hindsight.loading.plain import paragraphs
from hindsight.record import JsonObject

_HEADING = re.compile(r"(#{1,6})\s+(.+?)(?:\s+#+)?\s*")
_FENCE = re.compile(r"\s*(```|~~~)")
_KEY = re.compile(r"([A-Za-z_][\w-]*):\s*(.*)")
_OBSERVATION = re.compile(r"\s*[-*]\s+\[([^\]\[()]{2,})\]\s+(.+)")
_RELATION = re.compile(r"\s*[-*]\s+(.+?)\s+\[\[([^\]]+)\]\]\s*(?:\((.*)\))?\s*")
_HASHTAG = re.compile(r"(?<!\S)#([\w/-]+)")

Front = dict[str, str | list[str]]


@dataclass(slots=True)
class _Section:
    """The lines under a heading, with the headings above it."""

    number: int
    path: list[str]
    lines: list[tuple[int, bytes]]


def read_markdown(file: IO[bytes], name: str, *, by: str = "heading") -> Iterator[Found]:
    """One memory a section, told with its headings, or by paragraph; front matter gives tags and the date."""
    lines = list(lines_of(file))
    front, body = _front_matter(lines)
    common = _common(front, name)
    if "permalink" in front:
        notes = list(_basic_memory(front, body, common, name))
        if notes:
            yield from notes
            return
    for section in _sections(body):
        for number, text in _pieces(section, by):
            head = " / ".join(section.path)
            yield Item(f"{name}:{number}", {**common, "content": f"{head}\n{text}" if head else text})


def _pieces(section: _Section, by: str) -> Iterator[tuple[int, str]]:
    if by == "paragraph" or not section.path:
        yield from paragraphs(section.lines)
        return
    text = b"\n".join(line for _, line in section.lines).decode(errors="surrogateescape").strip()
    if text:
        yield section.number, text


def _sections(lines: list[tuple[int, bytes]]) -> Iterator[_Section]:
    section, path, fence = _Section(1, [], []), dict[int, str](), ""
    for number, raw in lines:
        line = raw.decode(errors="surrogateescape")
        if found := _FENCE.match(line):
            fence = found[1] if not fence else "" if fence == found[1] else fence
        heading = None if fence else _HEADING.fullmatch(line)
        if heading is None:
            section.lines.append((number, raw))
            continue
        yield section
        level = len(heading[1])
        path = {**{above: text for above, text in path.items() if above < level}, level: heading[2]}
        section = _Section(number, list(path.values()), [])
    yield section


def _front_matter(lines: list[tuple[int, bytes]]) -> tuple[Front, list[tuple[int, bytes]]]:
    """The YAML at the start as far as it is plain keys, strings and lists; and the lines after it."""
    if not lines or lines[0][1].strip() != b"---":
        return {}, lines
    ends = [place for place, (_, line) in enumerate(lines[1:], 1) if line.strip() in (b"---", b"...")]
    if not ends:
        return {}, lines
    front, key = Front(), ""
    for _, raw in lines[1 : ends[0]]:
        line = raw.decode(errors="replace")
        listed = line.strip().removeprefix("- ").strip() if line.strip().startswith("- ") else None
        if listed is not None and key:
            value = front[key]
            front[key] = [*(value if isinstance(value, list) else []), _bare(listed)]
        elif found := _KEY.fullmatch(line.rstrip()):
            key = found[1]
            front[key] = _value(found[2])
    return front, lines[ends[0] + 1 :]


def _value(text: str) -> str | list[str]:
    if text.startswith("[") and text.endswith("]"):
        return [_bare(part) for part in text[1:-1].split(",") if part.strip()]
    return _bare(text)


def _bare(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _common(front: Front, name: str) -> JsonObject:
    fields: JsonObject = {"document_id": name}
    if tags := front.get("tags"):
        fields["tags"] = tags if isinstance(tags, list) else [tag for tag in re.split(r"[\s,]+", tags) if tag]
    if isinstance(date := front.get("date"), str) and date:
        fields["event_date"] = date
    if isinstance(title := front.get("title"), str) and title:
        fields["metadata"] = {"title": title}
    return fields


def _basic_memory(front: Front, body: list[tuple[int, bytes]], common: JsonObject, name: str) -> Iterator[Found]:
    title = front.get("title") or name
    for number, raw in body:
        line = raw.decode(errors="surrogateescape")
        if found := _RELATION.fullmatch(line):
            note = f" ({found[3]})" if found[3] else ""
            told = {"content": f"{title} {found[1].replace('_', ' ')} {found[2]}{note}", "context": "relation"}
            yield Item(f"{name}:{number}", {**common, **told})
        elif found := _OBSERVATION.fullmatch(line):
            tags = [*common.get("tags", []), *_HASHTAG.findall(found[2])]
            text = _HASHTAG.sub("", found[2]).strip()
            told = {"content": f"{title}: {text}", "context": found[1].strip()}
            yield Item(f"{name}:{number}", {**common, **told, **({"tags": tags} if tags else {})})
