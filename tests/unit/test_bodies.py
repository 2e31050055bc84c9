"""Reading bodies when the server stops; their sizes and their pace are tested over real sockets."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from starlette.types import Message

from hindsight.http.bodies import Bodies, Stopped
from hindsight.settings import read_settings

pytestmark = pytest.mark.anyio

BOUND = 10.0


class Client:
    """Sends the first half of a body, and the rest once it may."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_send = asyncio.Event()
        self._begun = False

    async def __call__(self) -> Message:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"half ", "more_body": True}
        self.asked.set()
        await self.may_send.wait()
        return {"type": "http.request", "body": b"a body", "more_body": False}


async def test_whoever_waits_for_the_rest_of_a_body_is_told_that_the_server_stops() -> None:
    bodies, client = Bodies(read_settings()), Client()
    with anyio.fail_after(BOUND):
        reading = asyncio.create_task(bodies.read(client))
        await client.asked.wait()
        bodies.end()
        [outcome] = await asyncio.gather(reading, return_exceptions=True)

    assert isinstance(outcome, Stopped)
    assert (outcome.code, outcome.status) == ("TOO_BUSY", 503)


async def test_an_end_is_not_held_up_by_a_body_whose_time_has_just_run_out() -> None:
    bodies, client = Bodies(read_settings(send_timeout=0.01)), Client()
    ended = asyncio.Event()

    def end() -> None:
        bodies.end()
        ended.set()

    with anyio.fail_after(BOUND):
        reading = asyncio.create_task(bodies.read(client))
        await client.asked.wait()
        # The timer of the body is older, so it runs out right before the end within one turn of the loop.
        loop = asyncio.get_running_loop()
        loop.call_at(next(iter(bodies._arriving)).when() or 0, end)
        [outcome] = await asyncio.gather(reading, return_exceptions=True)
        await ended.wait()

    assert isinstance(outcome, Stopped)


async def test_a_body_that_begins_after_the_end_is_not_read() -> None:
    bodies, client = Bodies(read_settings()), Client()
    bodies.end()

    with pytest.raises(Stopped, match="shutting down"):
        await bodies.read(client)

    assert not client.asked.is_set()


async def test_what_was_read_before_the_end_stays_read() -> None:
    bodies, client = Bodies(read_settings()), Client()
    client.may_send.set()

    body = await bodies.read(client)
    bodies.end()

    assert body == b"half a body"
