"""POST /banks/{bank_id}/reindex: gives a bank to the embedder in use, and tells how far that is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Scope, Send

from hindsight.bank import Bank
from hindsight.errors import HindsightError
from hindsight.http.answers import answer, answer_error
from hindsight.http.paths import bank_of
from hindsight.messages import encode
from hindsight.record import BankId


class Reindex:
    """Answers at once; the vectors are made beside recalls and retains. Ask again to hear how many still wait."""

    def __init__(self, lease: Callable[[BankId], AbstractAsyncContextManager[Bank]]) -> None:
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._lease(bank_of(scope)) as bank:
                told = await bank.reindex()
        except HindsightError as error:
            await answer_error(send, error)
            return
        await answer(send, 200, encode(told))
