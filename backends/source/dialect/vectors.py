"""Vector accesses of each element type and dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from .float8 import FLOATS8


@frozen
class Vectors:
    """Vectors of one element type.

    `type` is the type of an access, of `{words}` parts with `per_word` elements each; `load` and `store` are templates
    ({p} pointer, {i} element, {vector} that type, {space} qualifier, {words}, {values} parts). `elements` extract the
    elements of part `{x}.{c}`, `word` makes a part of as many values. `guarded`, if present, loads to {x} from global
    memory if {ok}: as one instruction, as a compiler may make a branch of a condition, after which threads wait for
    each load separately.
    """

    type: str
    load: str
    store: str
    elements: tuple[str, ...] = ("{x}.{c}",)
    word: str = "{0}"
    names: Sequence[str] = "xyzw"
    guarded: str = ""

    @property
    def per_word(self) -> int:
        """Elements of a part."""
        return len(self.elements)

    def parts(self, width: int) -> Sequence[str]:
        """Return the names of the parts of a vector of `width` elements."""
        return self.names[: width // self.per_word]

    def vector(self, width: int) -> str:
        """Return the type of `width` elements."""
        return self.type.format(words=width // self.per_word)

    def element(self, name: str, number: int, conversion: str = "", per_byte: int = 1, zero: int = 0) -> str:
        """Return an element of a vector, by a conversion's text if any.

        A byte may have several elements.
        """
        word, place = divmod(number, self.per_word * per_byte)
        return (conversion or self.elements[place]).format(x=name, c=self.names[word], place=place, zero=zero)

    def pack(self, values: Sequence[str], word: str = "") -> list[str]:
        """Return the parts with some values.

        `word` makes a part, by default of values of the element type.
        """
        text = word or self.word
        return [text.format(*values[k : k + self.per_word]) for k in range(0, len(values), self.per_word)]


_CUDA_LOAD = "*reinterpret_cast<const {vector}*>(&{p}[{i}])"
_CUDA_STORE = "*reinterpret_cast<{vector}*>(&{p}[{i}]) = make_{vector}({values});"
_OPENCL_LOAD = "*(const {space}{vector}*)(&{p}[{i}])"
_OPENCL_STORE = "*({space}{vector}*)(&{p}[{i}]) = ({vector})({values});"
_COMPONENTS = tuple(f"s{n:x}" for n in range(16))


def _cuda_halves(name: str) -> Vectors:
    elements = (f"cuts_low_{name}({{x}}.{{c}})", f"cuts_high_{name}({{x}}.{{c}})")
    guarded = "cuts_guarded{words}({x}, &{p}[{i}], {ok});"
    return Vectors("uint{words}", _CUDA_LOAD, _CUDA_STORE, elements, f"cuts_pack_{name}({{0}}, {{1}})", guarded=guarded)


def _cuda_bytes(name: str) -> Vectors:
    elements = (f"cuts_low_{name}({{x}}.{{c}})", f"cuts_high_{name}({{x}}.{{c}})")
    pack, guarded = f"cuts_pair_{name}({{0}}, {{1}})", "cuts_guarded_pairs{words}({x}, &{p}[{i}], {ok});"
    return Vectors("ushort{words}", _CUDA_LOAD, _CUDA_STORE, elements, pack, guarded=guarded)


def _cuda_integers(kind: str) -> Vectors:
    """Return vectors of integers of a byte, four in a word."""
    elements = tuple(f"(({kind})({{x}}.{{c}}{f' >> {8 * k}' if k else ''}))" for k in range(4))
    word = " | ".join(f"(unsigned int)(unsigned char)({{{k}}}){f' << {8 * k}' if k else ''}" for k in range(4))
    return Vectors("uint{words}", _CUDA_LOAD, _CUDA_STORE, elements, word)


CUDA_VECTORS: Mapping[str, Vectors] = {
    "f64": Vectors("double{words}", _CUDA_LOAD, _CUDA_STORE),
    "i64": Vectors("longlong{words}", _CUDA_LOAD, _CUDA_STORE),
    "f32": Vectors("float{words}", _CUDA_LOAD, _CUDA_STORE),
    "i32": Vectors("int{words}", _CUDA_LOAD, _CUDA_STORE),
    "f16": _cuda_halves("f16"),
    "bf16": _cuda_halves("bf16"),
    **{name: _cuda_bytes(name) for name in FLOATS8},
    "i8": _cuda_integers("signed char"),
    "u8": _cuda_integers("unsigned char"),
}

OPENCL_VECTORS: Mapping[str, Vectors] = {
    "f64": Vectors("double{words}", _OPENCL_LOAD, _OPENCL_STORE),
    "i64": Vectors("long{words}", _OPENCL_LOAD, _OPENCL_STORE),
    "f32": Vectors("float{words}", _OPENCL_LOAD, _OPENCL_STORE),
    "i32": Vectors("int{words}", _OPENCL_LOAD, _OPENCL_STORE),
    "f16": Vectors(
        "float{words}",
        "vload_half{words}(0, &{p}[{i}])",
        "vstore_half{words}(({vector})({values}), 0, &{p}[{i}]);",
        names=_COMPONENTS,
    ),
    "bf16": Vectors(
        "ushort{words}",
        _OPENCL_LOAD,
        _OPENCL_STORE,
        ("cuts_from_bf16({x}.{c})",),
        "cuts_to_bf16({0})",
        _COMPONENTS,
    ),
    **{
        name: Vectors(
            "uchar{words}",
            _OPENCL_LOAD,
            _OPENCL_STORE,
            (f"cuts_from_{name}({{x}}.{{c}})",),
            f"cuts_to_{name}({{0}})",
            _COMPONENTS,
        )
        for name in FLOATS8
    },
    "i8": Vectors("char{words}", _OPENCL_LOAD, _OPENCL_STORE, names=_COMPONENTS),
    "u8": Vectors("uchar{words}", _OPENCL_LOAD, _OPENCL_STORE, names=_COMPONENTS),
}
