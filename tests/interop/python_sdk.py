"""A client of the Python SDK 1: initialises, lists the tools, retains and recalls, and prints what it saw as JSON.

    python python_sdk.py sse|http URL KEY

The SDK 2 is what the tests in `tests/protocol` speak with.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client  # type: ignore[attr-defined]  # its name in the SDK 1


async def main(door: str, url: str, key: str) -> None:
    connect = sse_client if door == "sse" else streamablehttp_client
    transport: AbstractAsyncContextManager[Any] = connect(url, headers={"x-api-key": key})
    async with transport as (reading, writing, *_), ClientSession(reading, writing) as session:
        server = (await session.initialize()).model_dump(by_alias=True)["serverInfo"]
        tools = await session.list_tools()
        retained = await session.call_tool("retain", {"content": "Ada drinks green tea."})
        recalled = await session.call_tool("recall", {"query": "tea", "max_results": 3})
    seen = {
        "server": server["name"],
        "tools": [tool.name for tool in tools.tools],
        "retained": retained.model_dump()["content"][0]["text"],
        "recalled": [m["text"] for m in recalled.model_dump(by_alias=True)["structuredContent"]["results"]],
    }
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
