"""How much a bank may hold, set by the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import answer, client, refusal, serving

pytestmark = pytest.mark.anyio


async def test_a_full_bank_refuses_new_memories_and_goes_on_reading(tmp_path: Path, model_folder: Path) -> None:
    with serving(tmp_path, model_dir=model_folder, ready=False, max_memories_per_bank=2) as server:
        async with client(server.url, "full") as full, client(server.url, "empty") as empty:
            first = await answer(full, "retain", content="The first of two")
            await answer(full, "retain", content="The second of two")

            refused = await refusal(full, "retain", content="One too many")
            again = await answer(full, "retain", content="The first of two")
            found = await answer(full, "recall", query="one too many, or the first")
            elsewhere = await answer(empty, "retain", content="Another bank has room")

            await answer(full, "forget", id=first["id"])
            after = await answer(full, "retain", content="There is room again")

    assert refused["code"] == "STORAGE_FULL"
    assert "2 memories" in refused["message"]
    assert again == {**first, "status": "known"}
    assert {result["text"] for result in found["results"]} == {"The first of two", "The second of two"}
    assert [elsewhere["status"], after["status"]] == ["stored", "stored"]
