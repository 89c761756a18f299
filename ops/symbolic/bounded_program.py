"""Program of an operation for a range of sizes.

Tensors have room for the greatest sizes, and the true sizes are read from inputs.
It computes the elements that are there as the operation does at the sizes of a run. Others hold any value, and no
element that is there is computed from them: reductions, scatters and reads beyond an end have guards with the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve, field

from ...ir import (
    Const,
    DimFactor,
    DimLayout,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Program,
    Read,
    SizeSamples,
    Statement,
    SymbolicExtent,
    TensorType,
    Var,
    as_index,
    call,
    indirects,
    linearise,
    reads,
    rebuild,
    variables,
    walk,
)
from .layouts import regroup
from .masks import join_pieces, mask_arrivals, mask_reduction
from .unify import SizeDependence, SizeInput, Unifier, common_value, confine_read

Layouts = tuple[DimLayout, ...]


def bounded_program(
    programs: Sequence[Program], samples: SizeSamples, inputs: Mapping[str, SizeInput], operands: Mapping[str, Layouts]
) -> tuple[Program, dict[str, Layouts]]:
    """Return the program for a range of sizes, and its results' layouts.

    `programs` are those at the samples, the greatest sizes first. The result is `programs[0]` where no statement needs
    a size.

    Raises `SizeDependence` where the sizes enter it otherwise than as affine extents.
    """
    moved = _moved_elements(programs, samples, operands)
    if moved is not None:
        return programs[0], {programs[0].outputs[0]: moved}
    return _Bounding(programs, Unifier(samples, inputs), dict(operands)).run()


def _moved_elements(
    programs: Sequence[Program], samples: SizeSamples, operands: Mapping[str, Layouts]
) -> Layouts | None:
    """Return the layout of the result of a program that keeps all elements in their order; None for other programs."""
    program = programs[0]
    if len(program.statements) != 1 or len(program.outputs) != 1:
        return None
    statement, target = program.statements[0], program.tensors[program.outputs[0]]
    read = statement.body
    if not isinstance(read, Read) or read.guards or not statement.is_pointwise or read.tensor not in operands:
        return None
    source = program.tensors[read.tensor]
    if any(p.tensors[read.tensor].size != p.tensors[p.outputs[0]].size for p in programs) or not target.size:
        return None
    if linearise(read.indices, source.strides) != linearise(statement.write, target.strides):
        return None
    found = regroup([factor for layout in operands[read.tensor] for factor in layout], target.shape)
    if found is None:
        raise SizeDependence(f"a reshape of {source} to {target} divides or joins dims whose sizes vary")
    for number, sizes in enumerate(samples.samples):
        expected = tuple(math.prod(factor.extent.at(sizes) for factor in layout) for layout in found)
        if programs[number].tensors[program.outputs[0]].shape != expected:
            raise SizeDependence(f"a reshape of {source} to {target} has another form at other sizes")
    return found


@define
class _Bounding:
    programs: Sequence[Program]
    unifier: Unifier
    layouts: dict[str, Layouts]
    pieces: dict[str, list[tuple[Statement, dict[Var, SymbolicExtent]]]] = field(factory=dict)

    def run(self) -> tuple[Program, dict[str, Layouts]]:
        first = self.programs[0]
        common_value([tuple(program.tensors) for program in self.programs], "the list of tensors")
        common_value([program.constants for program in self.programs], "a table")
        for table in first.constants:
            self.layouts[table] = tuple((DimFactor(n, SymbolicExtent(n)),) for n in first.tensors[table].shape)
        for name in first.inputs:
            if name not in self.layouts:
                self.layouts[name] = self._prefixes(name)
        if any(len(program.statements) != len(first.statements) for program in self.programs):
            raise SizeDependence("the operation has other statements at other sizes")
        parts = zip(*(program.statements for program in self.programs), strict=True)
        statements = [self._statement(each) for each in parts]
        tensors = dict(first.tensors)
        statements = self._count_from_start(statements, tensors)
        statements = self._join_statements(statements)
        used = {tensor for s in statements for tensor in s.tensors_read} - set(tensors)
        extra = tuple(source.tensor for source in self.unifier.inputs.values() if source.tensor in used)
        tensors |= {name: TensorType(DType.I32, ()) for name in extra}
        results = {name: self.layouts.get(name) or self._prefixes(name) for name in first.outputs}
        if tuple(statements) == first.statements:
            return first, results
        confined = tuple(self._confine_reads(statement, tensors) for statement in statements)
        return evolve(first, tensors=tensors, inputs=(*first.inputs, *extra), statements=confined), results

    def _prefixes(self, name: str) -> Layouts:
        """Return the layout of a tensor whose dims are prefixes."""
        shapes = [program.tensors[name].shape for program in self.programs]
        if any(len(shape) != len(shapes[0]) for shape in shapes):
            raise SizeDependence(f"tensor '{name}' has another rank at other sizes")
        return tuple(
            (DimFactor(sizes[0], self.unifier.extent(sizes, f"dim {number} of '{name}'")),)
            for number, sizes in enumerate(zip(*shapes, strict=True))
        )

    # ---- statements

    def _statement(self, found: Sequence[Statement]) -> Statement:
        first = found[0]
        kept = ("target", "combine", "into", "atomic")
        for attribute in kept:
            common_value([getattr(statement, attribute) for statement in found], f"a statement of '{first.target}'")
        names = [tuple(v.name for v in (*s.axes, *s.reduce, *filter(None, [s.step]))) for s in found]
        common_value(names, f"an axis of '{first.target}'")
        merged = self._merged_axes(first)
        axes = zip(*((*s.axes, *s.reduce) for s in found), strict=True)
        extents = {
            each[0]: self.unifier.extent([axis.extent for axis in each], f"an axis of '{first.target}'")
            for each in axes
            if each[0] not in merged
        }
        body = self.unifier.expr([statement.body for statement in found])
        write = tuple(self.unifier.index(each) for each in zip(*(s.write for s in found), strict=True))
        made = evolve(first, body=body, write=write)
        self._place(first, merged)
        guards = tuple(self._guards(first.reduce, extents, merged))
        if guards:
            self._check_position(first, extents, merged)
            made = mask_reduction(made, guards, self.programs[0].tensors)
        arriving = tuple(self._guards(first.axes, extents, merged)) if first.into else ()
        if arriving:
            if not first.combines_in_memory:
                raise SizeDependence(f"values that arrive once in '{first.target}' vary in number")
            made = mask_arrivals(made, arriving, self.programs[0].tensors)
        self.pieces.setdefault(first.target, []).append((made, extents))
        return made

    def _guards(
        self, axes: Sequence[Var], extents: Mapping[Var, SymbolicExtent], merged: Mapping[Var, DimLayout]
    ) -> Iterator[Guard]:
        """Yield the conditions that positions of axes are there."""
        for axis in axes:
            if axis in merged:
                inner = 1
                for factor in reversed(merged[axis]):
                    index = as_index(axis) // inner % factor.capacity
                    inner *= factor.capacity
                    if not factor.is_whole:
                        yield from self.unifier.guards_below(index, factor.extent)
            elif not extents[axis].is_const:
                yield from self.unifier.guards_below(as_index(axis), extents[axis])

    def _check_position(
        self, statement: Statement, extents: Mapping[Var, SymbolicExtent], merged: Mapping[Var, DimLayout]
    ) -> None:
        """Raise where the position of an extreme would count elements that are not there."""
        layouts = [merged.get(axis) or (DimFactor(axis.extent, extents[axis]),) for axis in statement.reduce]
        long = [factor for layout in layouts for factor in layout if factor.capacity > 1]
        if str(statement.combine).startswith("arg") and not all(factor.is_whole for factor in long[1:]):
            raise SizeDependence("the position of an extreme over several axes counts elements by a size")

    def _merged_axes(self, statement: Statement) -> dict[Var, DimLayout]:
        """Return the axes along merged dims, which may index nothing else."""
        found: dict[Var, DimLayout] = {}
        for read in reads(statement.body):
            for index, layout in zip(read.indices, self.layouts[read.tensor], strict=True):
                if len(layout) == 1:
                    continue
                axis = next((v for v in (*statement.axes, *statement.reduce) if index == as_index(v)), None)
                if axis is None or found.setdefault(axis, layout) != layout:
                    raise SizeDependence(f"positions of a dim that merges others enter index {index.text}")
        if found:
            self._check_merged(statement, found)
        return found

    def _check_merged(self, statement: Statement, merged: Mapping[Var, DimLayout]) -> None:
        for read in reads(statement.body):
            for index, layout in zip(read.indices, self.layouts[read.tensor], strict=True):
                axes = [axis for axis in merged if axis in variables(index)]
                if axes and (index != as_index(axes[0]) or layout != merged[axes[0]]):
                    raise SizeDependence(f"positions of a dim that merges others enter index {index.text}")
        others = [index for expr in walk(statement.body) for index in expr.own_indices if not isinstance(expr, Read)]
        others += [guard.index for read in reads(statement.body) for guard in read.guards]
        if any(axis in variables(index) for index in others for axis in merged):
            raise SizeDependence("positions of a dim that merges others are used as a number")

    def _place(self, statement: Statement, merged: Mapping[Var, DimLayout]) -> None:
        """Note the layout of a statement's tensor."""
        if not merged.keys() & set(statement.axes):
            layout = self._prefixes(statement.target)
        else:
            shape = self.programs[0].tensors[statement.target].shape
            layout = tuple(
                self._dim_layout(statement, number, index, merged)
                for number, (index, _) in enumerate(zip(statement.write, shape, strict=True))
            )
        if self.layouts.setdefault(statement.target, layout) != layout:
            raise SizeDependence(f"parts of '{statement.target}' lie at different places")

    def _dim_layout(
        self, statement: Statement, number: int, index: Index, merged: Mapping[Var, DimLayout]
    ) -> DimLayout:
        axis = next((axis for axis in merged if axis in variables(index)), None)
        sizes = [program.tensors[statement.target].shape[number] for program in self.programs]
        if axis is None:
            return (DimFactor(sizes[0], self.unifier.extent(sizes, f"dim {number} of '{statement.target}'")),)
        if index != as_index(axis) or axis.extent != sizes[0]:
            raise SizeDependence(f"positions of a dim that merges others enter index {index.text}")
        return merged[axis]

    def _count_from_start(self, statements: list[Statement], tensors: dict[str, TensorType]) -> list[Statement]:
        """Add the statements of index tensors whose negative elements count from a size, before their first readers."""
        found = list(statements)
        for name, (source, extent) in self.unifier.counted.items():
            type_ = tensors[name] = tensors[source]
            axes = tuple(Var(f"i{number}", size) for number, size in enumerate(type_.shape))
            read, size = Read(source, tuple(map(as_index, axes))), IndexValue(self.unifier.size(extent), type_.dtype)
            body = call("select", call("lt", read, Const(0, type_.dtype)), call("add", read, size), read)
            place = next(number for number, statement in enumerate(found) if name in statement.tensors_read)
            found.insert(place, Statement(name, axes, tuple(map(as_index, axes)), body))
        return found

    # ---- results

    def _join_statements(self, statements: Sequence[Statement]) -> list[Statement]:
        """Join the statements of tensors that have a piece which begins at a size."""
        sizes = {source.tensor for source in self.unifier.inputs.values()}
        moved = {s.target for s in statements if not s.into and _tensors_of(s.write) & sizes}
        found: list[Statement] = []
        for number, statement in enumerate(statements):
            if statement.target not in moved:
                found.append(statement)
            elif all(later.target != statement.target for later in statements[number + 1 :]):
                shape = self.programs[0].tensors[statement.target].shape
                found.append(join_pieces(self.pieces[statement.target], shape, self.unifier))
        return found

    def _confine_reads(self, statement: Statement, tensors: Mapping[str, TensorType]) -> Statement:
        def confine(expr: Expr) -> Expr:
            return confine_read(expr, tensors[expr.tensor]) if isinstance(expr, Read) else expr

        return evolve(statement, body=rebuild(statement.body, confine))


def _tensors_of(indices: Sequence[Index]) -> set[str]:
    return {i.tensor for index in indices for i in indirects(index)}
