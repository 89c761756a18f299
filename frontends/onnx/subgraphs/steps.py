"""Import of the body of a branch or of a loop's step."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ....ir import Attribute
from ..importer import Importer
from ..protos import rename_values, tensor_array


def import_step(importer: Importer, body: onnx.GraphProto, operands: list[str], label: str, where: str) -> list[str]:
    """Import a body with its inputs bound to values; return its results."""
    own = set(_own_values(body))
    names: dict[str, str] = dict(zip((value.name for value in body.input), operands, strict=True))

    def rename(name: str) -> str:  # a name of the body, or of the graph around it
        if name in own and name not in names:
            names[name] = importer.fresh(f"{label}.{name}")
        return names.get(name, name)

    for tensor in body.initializer:
        importer.define_constants(
            {rename(tensor.name): tensor_array(tensor, importer.folder, f"{where}: initialiser '{tensor.name}'")}
        )
    importer.run([rename_values(inner, rename, f"{label}/{inner.name or inner.op_type}") for inner in body.node])
    found: list[str] = [rename(value.name) for value in body.output]
    return [importer.aliases.get(name, name) for name in found]


def _own_values(body: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that a body and its nested bodies define."""
    yield from (tensor.name for tensor in body.initializer)
    for node in body.node:
        yield from (name for name in node.output if name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from (value.name for value in attribute.g.input)
                yield from _own_values(attribute.g)


def stack_steps(importer: Importer, values: list[str], axis: int, origin: str) -> str:
    """Return the elements of all steps as one tensor."""
    shape = importer.types[values[0]].shape
    place = axis % (len(shape) + 1)
    deep: dict[str, Attribute] = {"shape": (*shape[:place], 1, *shape[place:]), "allowzero": True}
    wide = [importer.add_node("reshape", [v], deep, origin, [None])[0] for v in values]
    return wide[0] if len(wide) == 1 else importer.add_node("concat", wide, {"axis": place}, origin, [None])[0]
