"""Exports of other memories and chats as JSON: ChatGPT and Claude conversations, mem0."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hindsight.loading import Found, Item
from hindsight.record import JsonObject

_SPEAKERS = {"user": "User", "human": "User", "assistant": "Assistant"}


def is_chatgpt(value: Any) -> bool:
    """Whether this is a conversation as ChatGPT exports it."""
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def is_claude(value: Any) -> bool:
    """Whether this is a conversation as Claude exports it."""
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)


def is_mem0(value: Any) -> bool:
    """Whether this is a memory as mem0 exports it."""
    return isinstance(value, dict) and isinstance(value.get("memory"), str)


def read_chatgpt(conversation: JsonObject, place: str) -> Iterator[Found]:
    """One memory a message, along the branch that the user saw last."""
    session, title = conversation.get("conversation_id") or conversation.get("id"), conversation.get("title")
    for number, message in enumerate(_branch(conversation), 1):
        content, author = message.get("content"), message.get("author")
        role = author.get("role") if isinstance(author, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        text = "\n".join(part for part in parts if isinstance(part, str)) if isinstance(parts, list) else ""
        yield from _said(f"{place}, message {number}", role, text, _instant(message.get("create_time")), session, title)


def read_claude(conversation: JsonObject, place: str) -> Iterator[Found]:
    """One memory a message."""
    session, title = conversation.get("uuid"), conversation.get("name")
    for number, message in enumerate(conversation["chat_messages"], 1):
        if isinstance(message, dict):
            text = message.get("text") or _joined(message.get("content"))
            when = message.get("created_at")
            yield from _said(f"{place}, message {number}", message.get("sender"), text, when, session, title)


def read_mem0(memory: JsonObject, place: str) -> Found:
    """One memory; whose it is stays in the metadata."""
    given = memory.get("metadata")
    owners = {name: memory[name] for name in ("user_id", "agent_id", "app_id") if memory.get(name)}
    fields: JsonObject = {"content": memory["memory"], "metadata": {**owners, **(given if given else {})}}
    for name, source in (("tags", "categories"), ("session_id", "run_id"), ("retained_at", "created_at")):
        if memory.get(source):
            fields[name] = memory[source]
    return Item(place, fields)


def _branch(conversation: JsonObject) -> list[JsonObject]:
    mapping, key = conversation["mapping"], conversation.get("current_node")
    found: list[JsonObject] = []
    seen: set[Any] = set()
    while key in mapping and key not in seen:
        seen.add(key)
        node = mapping[key]
        if isinstance(node.get("message"), dict):
            found.append(node["message"])
        key = node.get("parent")
    if found:
        return found[::-1]
    messages = [node["message"] for node in mapping.values() if isinstance(node.get("message"), dict)]
    return sorted(messages, key=lambda message: message.get("create_time") or 0)


def _said(place: str, role: Any, text: Any, when: Any, session: Any, title: Any) -> Iterator[Found]:
    speaker = _SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is None or not isinstance(text, str) or not text.strip():
        return
    fields: JsonObject = {"content": f"{speaker}: {text}"}
    fields |= {name: value for name, value in (("event_date", when), ("session_id", session)) if value}
    if title:
        fields["metadata"] = {"title": title}
    yield Item(place, fields)


def _instant(seconds: Any) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _joined(blocks: Any) -> str:
    if not isinstance(blocks, list):
        return ""
    return "\n".join(
        block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)
    )
