"""What the server says of itself: its log lines, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from hindsight.settings import Settings


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": super().format(record),
        }
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: Settings) -> None:
    """Send the log to standard error; other libraries speak up only from warning on."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("hindsight").setLevel(settings.log_level.upper())
