"""The shape of the house, read from the source: who imports whom, and rules that hold in one file only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "hindsight"
ADAPTERS = ("embedding.onnx", "embedding.openai", "ledger.sqlite", "index.chroma", "index.server")

Layers = Mapping[str, int]


def read_layers(text: str) -> Layers:
    """The names of layers.txt, each with its line's number; the top one is 0."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: height for height, names in enumerate(lines) for name in names}


def modules() -> dict[str, ast.Module]:
    """The package's modules by their path below it; '' is the package itself."""
    return {_name(path): ast.parse(path.read_text("utf-8"), str(path)) for path in (ROOT / PACKAGE).rglob("*.py")}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str, layers: Layers) -> str | None:
    """The longest name in `layers` that `module` is or lies below."""
    parts = module.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in layers), None)


def imports(tree: ast.AST, known: Mapping[str, ast.Module]) -> Iterator[tuple[int, str]]:
    """Line and name of each module of the package that is imported, but for types only."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, path = name.partition(".")
            if first == PACKAGE:
                yield node.lineno, path if path in known else path.rpartition(".")[0]


def _executed(tree: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from _executed(child)


def breaches(known: Mapping[str, ast.Module], layers: Layers) -> list[str]:
    """Each import that does not go down, and each module that has no layer."""
    found = []
    for module, tree in sorted(known.items()):
        own = layer_of(module, layers)
        if own is None:
            found += [] if module == "" else [f"{module} is in no layer of layers.txt"]
            continue
        for line, imported in imports(tree, known):
            other = layer_of(imported, layers)
            if other is not None and other != own and layers[other] <= layers[own]:
                found.append(f"{module}:{line} imports {imported}, which is not below {own}")
    return found


def test_every_import_goes_down_and_every_module_has_a_layer() -> None:
    layers = read_layers((ROOT / "layers.txt").read_text("utf-8"))

    assert breaches(modules(), layers) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import hindsight.low", []),
        ("from hindsight.low import thing", []),
        ("from hindsight import low", []),
        ("import os.path", []),
        ("from hindsight.middle.own import thing", []),
        ("from hindsight.beside import thing", ["middle:1 imports beside, which is not below middle"]),
        ("from hindsight import top", ["middle:1 imports top, which is not below middle"]),
        ("def late():\n    import hindsight.top", ["middle:2 imports top, which is not below middle"]),
        (
            "try:\n    pass\nexcept OSError:\n    import hindsight.top",
            ["middle:4 imports top, which is not below middle"],
        ),
        ("if TYPE_CHECKING:\n    import hindsight.top", []),
        ("from hindsight.middle.upper import thing", ["middle:1 imports middle.upper, which is not below middle"]),
    ],
)
def test_the_check_sees_what_does_not_go_down(source: str, found: list[str]) -> None:
    layers = read_layers("# a comment\ntop middle.upper\nmiddle beside\nlow")
    others = ("top", "beside", "low", "middle.own", "middle.upper")
    known = {name: ast.parse("") for name in others} | {"middle": ast.parse(source)}

    assert breaches(known, layers) == found


def test_the_check_sees_a_module_in_no_layer() -> None:
    assert breaches({"stray": ast.parse(""), "": ast.parse("")}, {"low": 0}) == ["stray is in no layer of layers.txt"]


def test_wiring_alone_imports_adapters_and_only_where_it_needs_them() -> None:
    known = modules()
    importers = {module for module, tree in known.items() for _, name in imports(tree, known) if name in ADAPTERS}
    wiring = [node for node in known["wiring"].body if isinstance(node, ast.Import | ast.ImportFrom)]
    at_top = [name for _, name in imports(ast.Module(list(wiring), []), known)]

    assert importers <= {"wiring", *ADAPTERS}
    assert set(at_top) & set(ADAPTERS) == set()


def test_wiring_alone_imports_the_package_late() -> None:
    known = modules()
    late = [
        f"{module}:{line} imports {imported} late"
        for module, tree in known.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and module != "wiring"
        for line, imported in imports(function, known)
    ]

    assert late == []


def test_session_alone_catches_everything() -> None:
    found = [
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and _catches_everything(node)
    ]

    assert found == ["session"]


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    named = "" if handler.type is None else ast.unparse(handler.type)
    return not named or bool({"Exception", "BaseException"} & set(named.strip("()").split(", ")))


def test_nothing_is_mocked() -> None:
    tests = {path: path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    words = ("unittest.mock", "import mock", "pytest_mock", "mocker")

    assert [str(path) for path, text in tests.items() if any(word in text for word in words)] == []
