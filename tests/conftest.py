"""What tests of every kind share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindsight.settings import Settings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder of the embedding model that scripts/install makes."""
    folder = Path(Settings.model_fields["model_dir"].default)
    if not (folder / "model.json").exists():
        pytest.fail(f"there is no embedding model in {folder}: run scripts/install, then scripts/test", pytrace=False)
    return folder
