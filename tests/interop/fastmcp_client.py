"""A client of fastmcp: initialises, lists the tools, retains and recalls, and prints what it saw as JSON.

    python fastmcp_client.py sse|http URL KEY

fastmcp knows the transport by the URL, and sends the key as a bearer token.
"""

from __future__ import annotations

import asyncio
import json
import sys

from fastmcp import Client  # type: ignore[import-not-found]  # installed by scripts/interop, apart


async def main(door: str, url: str, key: str) -> None:
    async with Client(url, auth=key) as client:
        tools = await client.list_tools()
        retained = await client.call_tool("retain", {"content": "Ada drinks green tea."})
        recalled = await client.call_tool("recall", {"query": "tea", "max_results": 3})
        seen = {
            "server": client.server_info.name,
            "tools": [tool.name for tool in tools],
            "retained": retained.content[0].text,
            "recalled": [memory["text"] for memory in recalled.structured_content["results"]],
        }
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
