"""A checkup of a bank's folder that nobody has open: the ledger in itself, and the index beside it; and their repair.

Nothing is changed but what a repair needs; and a bank that is sound loses the remains of what was forgotten.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hindsight.banks import LEDGER
from hindsight.errors import HindsightError, IndexUnavailable
from hindsight.gone import is_gone
from hindsight.index import Keys, segments
from hindsight.ledger import derived, faults, salvage, upkeep
from hindsight.ledger.derived import Fault
from hindsight.ledger.faults import MakeCuts
from hindsight.ledger.schema import committed, lay_out
from hindsight.record import BankId

INDEX = "index"
_KEPT = "vectors of what was forgotten stay until the Chroma server can be reached; run this again then"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What a checkup needs of the parts in use. All of it blocks.

    `make_cuts` cuts a text into passages as a retain does. `keys_in` tells which keys an index folder holds for a bank
    and a dimension; None where indexes are on a server, which is compared whenever a bank is opened. `remove_index`
    removes the index of the bank in a folder, wherever it is. They raise HindsightError.
    """

    make_cuts: MakeCuts
    keys_in: Callable[[Path, BankId, int], Keys] | None
    remove_index: Callable[[Path], None]


@dataclass(slots=True)
class Finding:
    """Something that is wrong with a bank; `remedy` says, after "by", how it is or was repaired, if it can be.

    `loss` tells that something could not be saved.
    """

    what: str
    remedy: str = ""
    repaired: bool = False
    notes: list[str] = field(default_factory=list)
    loss: bool = False


class Checkup:
    """The checkup of one bank's folder. `findings` is empty when the bank is sound."""

    def __init__(self, folder: Path, ways: Ways, *, repair: bool) -> None:
        self._known = BankId.of_folder(folder.name)
        self.name = self._known.text if self._known else folder.name
        self.findings: list[Finding] = []
        self._folder = folder
        self._ledger = folder / LEDGER
        self._ways = ways
        self._repair = repair

    @property
    def good(self) -> bool:
        """Whether the bank is sound by now, and nothing of it is lost."""
        return self._is_sound() and not any(finding.loss for finding in self.findings)

    def run(self) -> None:
        """Look at everything, and repair what is wrong if that is wanted. Raises nothing that a bank could cause."""
        try:
            if self._is_there() and self._is_whole():
                self._look_inside()
                if self._is_sound() and upkeep.has_forgotten(self._ledger):
                    self._purge()
                else:
                    self._look_at_index()
        except upkeep.Unusable as error:
            self.findings.append(Finding(str(error)))
        except HindsightError as error:
            self.findings.append(Finding(f"stopped short: {error.message}. {error.advice}"))
        except (OSError, ValueError, sqlite3.Error) as error:
            self.findings.append(Finding(f"stopped short: {error}"))

    def _is_sound(self) -> bool:
        return all(finding.repaired for finding in self.findings)

    def _is_there(self) -> bool:
        """Whether there is anything to look at: a server may have been stopped before it stored the first memory."""
        if not _holds_something(self._folder):
            return False
        return not salvage.is_unfinished(self._ledger) or self._met(
            "a repair was cut short", "finishing it", lambda finding: salvage.finish(self._ledger)
        )

    def _is_whole(self) -> bool:
        """Whether the ledger is a whole file by now that holds anything. Raises Unusable."""
        if found := upkeep.header_faults(self._ledger) or upkeep.file_faults(self._ledger):
            kept = salvage.kept_as(self._ledger).name
            remedy = f"saving what can be read into a new ledger, and keeping this one as {kept}"
            if not self._met("; ".join(found), remedy, self._salvage):
                return False
        if not upkeep.is_empty(self._ledger):
            return True
        if (self._folder / INDEX).exists():
            raise upkeep.Unusable(f"{LEDGER} is empty, but there is an index; put {LEDGER} back from a backup")
        return False

    def _salvage(self, finding: Finding) -> None:
        with salvage.salvaged(self._ledger, self._known.text if self._known else None) as (draft, saved):
            with upkeep.writing(draft) as database:
                found = faults.faults(database, self._ways.make_cuts)
                _mend(database, found)
            for index in self._folder.glob(f"{INDEX}*"):
                shutil.rmtree(index)
            salvage.install(draft, self._ledger)
        finding.notes.append(f"memories saved: {saved.memories:,}")
        finding.notes += [f"saved in part: {id}, without its {', '.join(names)}" for id, names in saved.damaged.items()]
        finding.notes += [f"in what was saved: {fault.what}; mended by {fault.remedy}" for fault in found]
        finding.loss = bool(saved.lost or saved.damaged or not saved.memories)
        if saved.lost:
            finding.notes.append(f"memories known to be lost: {saved.lost:,}")
            finding.notes += [f"lost: {id}" for id in sorted(saved.ids)]

    def _look_inside(self) -> None:
        with upkeep.reading(self._ledger) as database:
            found = [*self._misnamed(database), *faults.faults(database, self._ways.make_cuts)]
        self._meet(found)

    def _misnamed(self, database: sqlite3.Connection) -> Iterator[Fault]:
        row = database.execute("SELECT value FROM bank WHERE name = 'id'").fetchone()
        told = row[0].decode(errors="replace") if row else ""
        if self._known is None:
            self.name = told or self.name
        elif told != self._known.text:
            yield Fault(
                f"the ledger is that of a bank {told!r}" if told else "the ledger does not tell which bank it is",
                f"taking the folder's name for the bank's: {self._known.text!r}",
                self._rename,
            )

    def _rename(self, database: sqlite3.Connection) -> None:
        database.execute("INSERT OR REPLACE INTO bank VALUES ('id', ?)", (self.name,))
        # A copy must not share its collection on a server with the bank that it was copied from.
        database.execute("DELETE FROM bank WHERE name = 'tie'")

    def _look_at_index(self) -> None:
        if self._ways.keys_in is None:
            return
        folder = self._folder / INDEX
        with upkeep.reading(self._ledger) as database:
            noted, mark = len(derived.indexed(database)), derived.embedder_mark(database)
        if not folder.exists():
            if noted:
                self._found_index("the index is missing")
        elif torn := segments.torn_segments(folder):
            self._found_index(f"the index is torn ({', '.join(path.name for path in torn)})")
        elif mark is not None:
            try:
                held = self._ways.keys_in(folder, BankId.parse(self.name), mark.dimension)
            except IndexUnavailable as error:
                self._found_index(f"the index can't be used ({error.__cause__ or error})")
                return
            with upkeep.reading(self._ledger) as database:
                found = list(derived.index_faults(database, held))
            self._meet(found)

    def _found_index(self, what: str) -> None:
        self._met(what, "putting it aside; it is made again from the ledger at the bank's next use", self._put_aside)

    def _put_aside(self, finding: Finding) -> None:
        upkeep.unindex(self._ledger)
        segments.quarantine(self._folder / INDEX)

    def _purge(self) -> None:
        """Write the files anew without the remains of what was forgotten; the index is made again at the next use."""
        try:
            self._ways.remove_index(self._folder)
        except IndexUnavailable:
            self.findings.append(Finding(_KEPT))
            return
        upkeep.unindex(self._ledger)
        upkeep.compact(self._ledger)

    def _meet(self, found: Iterable[Fault]) -> None:
        """Note faults, and mend them all in one transaction if that is wanted."""
        found = list(found)
        findings = [Finding(fault.what, fault.remedy, loss=fault.loss) for fault in found]
        self.findings += findings
        if found and self._repair:
            with upkeep.writing(self._ledger) as database:
                lay_out(database, self.name)
                _mend(database, found)
            for finding in findings:
                finding.repaired = True

    def _met(self, what: str, remedy: str, repair: Callable[[Finding], None]) -> bool:
        """Note what is wrong, and repair it if that is wanted; whether it is repaired."""
        finding = Finding(what, remedy)
        self.findings.append(finding)
        if self._repair:
            repair(finding)
            finding.repaired = True
        return finding.repaired


def bank_folders(folder: Path) -> list[Path]:
    """The folders of banks in a folder of banks, by name; also what should be one and can't be looked into."""
    return sorted(path for path in folder.glob("*") if not (path.is_file() or is_gone(path)))


def look_over(folder: Path) -> None:
    """Log what the first pages of each bank's ledger tell to be wrong, a line a bank. Blocking, but fast.

    `folder` is that of the banks, which a server may be using.
    """
    for bank in bank_folders(folder):
        try:
            found = _glimpse(bank)
        except upkeep.Unusable as error:
            found = [str(error)]
        if found:
            logger.error("bank %s does not work: %s; stop the server and run hindsight check", bank.name, found[0])


def _holds_something(folder: Path) -> bool:
    """Raises Unusable."""
    try:
        return any(folder.iterdir())
    except OSError as error:
        raise upkeep.unreadable(folder, error) from error


def _glimpse(bank: Path) -> list[str]:
    ledger = bank / LEDGER
    if not _holds_something(bank):
        return []
    return upkeep.header_faults(ledger) or upkeep.name_faults(ledger)


def _mend(database: sqlite3.Connection, found: Iterable[Fault]) -> None:
    with committed(database):
        for fault in found:
            fault.mend(database)
