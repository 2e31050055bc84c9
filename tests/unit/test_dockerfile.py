"""The Dockerfile without a Docker engine: its steps run in a folder that stands for the image's root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hindsight.settings import PREFIX
from tests.serving import BOUND, answer, client, get, serving

ROOT = Path(__file__).resolve().parents[2]
BUILDING = 900.0  # seconds that a step may take: it downloads the dependencies
_OWN_FOLDERS = re.compile(r"(?<![\w./])/(?=(?:opt|src|data|weights|wheel)\b)")


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it: instructions with what stands behind them, continued lines joined."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [what for kind, what in self.steps if kind == instruction]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for each in self.all("ENV") for pair in each.split())


def stages() -> list[Stage]:
    lines = [line for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if line[:1] != "#"]
    found: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        kind, _, what = line.strip().partition(" ")
        if kind == "FROM":
            base, _, name = what.partition(" AS ")
            found.append(Stage(base, name))
        elif kind:
            found[-1].steps.append((kind, what.strip()))
    return found


class Image:
    """Stages run one after another below `root`, so that what is copied between them finds itself at the same path.

    The base image's python is the one that the tests run on.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._workdir = self.root
        bin_ = folder / "bin"
        bin_.mkdir()
        python = bin_ / "python"
        python.write_text(f'#!/bin/sh\nexec "{Path(sys.base_prefix, "bin", "python3")}" "$@"\n')
        python.chmod(0o755)
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith((PREFIX, "PYTHON", "VIRTUAL", "HOME", "CI"))
        }
        self._base = clean | {"PATH": f"{bin_}:/usr/bin:/bin"}

    def build(self, stage: Stage) -> None:
        """Run a stage; the one before, if any, stays as a source to copy from."""
        if self.root.exists():
            self.root.rename(self._folder / "builder")
        self.root.mkdir()
        self.environment, self._workdir = dict(self._base), self.root
        for kind, what in stage.steps:
            match kind:
                case "ENV":
                    self._set(what)
                case "WORKDIR":
                    self._workdir = Path(self.inside(what))
                    self._workdir.mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(what)
                case "RUN":
                    self._run(what)

    def inside(self, text: str) -> str:
        """`text` with the image's own folders moved below `root`."""
        return _OWN_FOLDERS.sub(f"{self.root}/", text)

    def _set(self, what: str) -> None:
        for pair in what.split():
            name, value = pair.split("=", 1)
            self.environment[name] = self.inside(value).replace("$PATH", self.environment["PATH"])

    def _copy(self, what: str) -> None:
        *sources, target = what.split()
        origin = ROOT
        if sources[0].startswith("--from="):
            origin = self._folder / sources.pop(0).removeprefix("--from=")
        destination = self._workdir / self.inside(target)
        for source in sources:
            found = origin / source.lstrip("/")
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(found, destination, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                to = destination / found.name if target.endswith("/") else destination
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, to)

    def _run(self, what: str) -> None:
        command = self.inside(what)
        if os.geteuid() != 0:
            command = re.sub(r" -[og] \d+", "", command)
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._workdir,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILDING,
            check=False,
        )
        assert done.returncode == 0, f"{what}\n{done.stdout}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    made = Image(folder)
    for stage in stages():
        made.build(stage)
    shutil.rmtree(folder / "builder")  # what the image runs on must all be inside
    yield made
    shutil.rmtree(folder)


def command_of(image: Image, instruction: str) -> list[str]:
    [what] = stages()[-1].all(instruction)
    words: list[str] = json.loads(what[what.index("[") :])
    # Popen looks a program up in its own PATH, not in the environment that it is given.
    program = shutil.which(words[0], path=image.environment["PATH"])
    assert program is not None
    return [program, *words[1:]]


def test_the_image_runs_as_nobody_on_a_volume_with_a_health_check_and_without_a_shell() -> None:
    builder, final = stages()

    assert builder.base == final.base
    assert "slim" in final.base
    assert final.all("USER") == ["10001:10001"]
    assert final.all("VOLUME") == ["/data"]
    assert final.all("EXPOSE") == [final.environment()["HINDSIGHT_PORT"]]
    assert final.all("CMD") == ['["hindsight", "serve"]']
    assert "/healthz" in final.all("HEALTHCHECK")[0]
    assert "curl" not in final.all("HEALTHCHECK")[0]


def test_the_image_neither_reports_home_nor_lets_anyone_in() -> None:
    environment = stages()[-1].environment()

    assert environment["ANONYMIZED_TELEMETRY"] == "False"
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"
    assert environment["HINDSIGHT_HOST"] == "0.0.0.0"
    assert "HINDSIGHT_ALLOW_ANONYMOUS" not in environment


def test_everything_that_is_copied_passes_the_ignore_file() -> None:
    first, *lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {source for what in stages()[0].all("COPY") for source in what.split()[:-1]}

    assert first == "*"
    assert copied == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_without_keys_the_image_refuses_to_listen(image: Image) -> None:
    done = subprocess.run(
        command_of(image, "CMD"), env=image.environment, capture_output=True, text=True, timeout=BOUND, check=False
    )

    assert done.returncode == 2
    assert "HINDSIGHT_HOST='0.0.0.0': without keys the server listens on loopback only" in done.stderr


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_image_serves_with_the_model_inside(image: Image) -> None:
    data = Path(image.environment["HINDSIGHT_DATA_DIR"])
    environment = image.environment | {"HINDSIGHT_HOST": "127.0.0.1", "HINDSIGHT_PORT": "0"}

    with serving(data, command=tuple(command_of(image, "CMD")), environment=environment) as server:
        async with client(server.url, "team") as session:
            await answer(session, "retain", content="The image remembers")
            found = await answer(session, "recall", query="What remembers?")
        alive = healthy(image, port=server.url.rpartition(":")[2])
        ready = get(f"{server.url}/readyz")[0]
        server.stop()
        dead = healthy(image, port=server.url.rpartition(":")[2])

    assert [result["text"] for result in found["results"]] == ["The image remembers"]
    assert (ready, alive, dead) == (200, True, False)
    assert set(os.listdir(data)) == {"lock", "banks"}


def healthy(image: Image, port: str) -> bool:
    done = subprocess.run(
        command_of(image, "HEALTHCHECK"),
        env=image.environment | {"HINDSIGHT_PORT": port},
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    return done.returncode == 0


@pytest.mark.slow
def test_nothing_that_only_builds_or_tests_is_in_the_image(image: Image) -> None:
    [packages] = image.root.glob("opt/hindsight/lib/python3*/site-packages")
    unwanted = {"pip", "kubernetes", "setuptools", "onnx", "pytest", "mypy", "ruff", "torch", "tests"}

    assert {path.name for path in packages.iterdir()} & unwanted == set()
    assert {path.name for path in image.root.iterdir()} == {"data", "opt"}
    assert {path.name for path in (image.root / "opt").iterdir()} == {"hindsight"}
