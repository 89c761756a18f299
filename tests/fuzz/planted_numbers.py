"""Planted bugs in arithmetic.

They concern element types, identities, NaN, wraparound, conversions, the width of indices, half precision, borders, and
the reference itself.
"""

from __future__ import annotations

from .planting import Bug


def _helper(name: str, what: str, old: str, new: str, area: str = "wrap") -> Bug:
    """A bug in a helper of the OpenCL dialect."""
    return Bug(area, what, f"backends.source.dialect.dialects:OPENCL.helpers[{name}]", old, new, "sweep")


def _scalar(name: str, field: str, what: str, old: str, new: str, area: str = "function") -> Bug:
    """A bug in the table of scalar functions."""
    return Bug(area, what, f"ir.functions:FUNCTIONS[{name}].{field}", old, new, "sweep")


BUGS = (
    # ---- element types
    Bug("type", "bytes are added up as signed", "ir.types:ELEMENTS[u8].accumulator", "u8", "i8", "sweep"),
    Bug("type", "a mean of bytes is taken in bytes", "ir.types:ELEMENTS[u8].wide", "u64", "u8", "sweep"),
    Bug("type", "a mean of integers is taken in their own type", "ir.types:ELEMENTS[i32].wide", "i64", "i32", "sweep"),
    Bug("type", "the least i64 has 32 bits", "ir.types:ELEMENTS[i64].digits", "63", "31", "sweep"),
    Bug("type", "an unsigned type counts as signed", "ir.types:ELEMENTS[u32].kind", "unsigned", "signed", "sweep"),
    Bug("type", "kernels hold 64 bits in 32",
        "backends.source.dialect.dialects:OPENCL.types[i64]", "long", "int", "sweep"),
    Bug("type", "unsigned longs are long",
        "backends.source.dialect.dialects:OPENCL.types[u64]", "unsigned long", "long",
        "sweep"),
    Bug("type", "unsigned shorts are short",
        "backends.source.dialect.dialects:OPENCL.types[u16]", "unsigned short", "short",
        "sweep"),
    Bug("type", "doubles are floats in registers",
        "backends.source.dialect.dialects:OPENCL.types[f64]", "double", "float",
        "sweep"),
    Bug("type", "a cast to a condition keeps the number", "backends.source.ctext:convert_text",
        'f"({text} != 0)"', 'f"({text})"', "tests/kernels/test_numbers.py"),
    Bug("type", "narrow numbers move in vectors of four bytes",
        "backends.source.dialect.vectors:OPENCL_VECTORS[bf16].load",
        "*(const {space}{vector}*)(&{p}[{i}])",
        "convert_ushort{words}(vload{words}(0, (const {space}uint*)(&{p}[{i}])))", "tests/kernels/test_halves.py"),
    Bug("type", "reduce max of i32 and i64 begins above the least integer", "backends.source.ctext:_integer_text",
        'f"({value + 1}{suffix} - 1)"', 'f"({value + 1}{suffix})"', "sweep"),
    # ---- identities
    Bug("identity", "a maximum begins at zero", "ir.functions:COMBINERS[max].start", "-inf", "0.0", "sweep"),
    Bug("identity", "a minimum begins at one", "ir.functions:COMBINERS[min].start", "inf", "1.0", "sweep"),
    Bug("identity", "a product begins at zero", "ir.functions:COMBINERS[prod].start", "1.0", "0.0", "sweep"),
    Bug("identity", "the least value is that of 32 bits", "ir.functions:Combiner.identity",
        "return dtype.element.lowest if self.start < 0 else dtype.element.highest",
        "return max(dtype.element.lowest, -2**31) if self.start < 0 else min(dtype.element.highest, 2**31 - 1)",
        "sweep"),
    Bug("identity", "the greatest value is signed", "ir.functions:Combiner.identity", "else dtype.element.highest",
        "else min(dtype.element.highest, (1 << (8 * dtype.size - 1)) - 1)", "sweep"),
    # ---- NaN
    _helper("cuts_max_f32", "a maximum drops NaN", " || b != b", "", "nan"),
    _helper("cuts_min_f64", "a minimum of doubles drops NaN", " || b != b", "", "nan"),
    _helper("cuts_max_f64", "the greater of two is the less", "a < b", "b < a", "nan"),
    _scalar("isnan", "c", "no number is NaN", "({0} != {0})", "0", "nan"),
    _scalar("isinf", "c", "only one infinity is one", "fabs({0})", "({0})", "nan"),
    _scalar("ge", "c", "at least is not below", "({0} >= {1})", "(!({0} < {1}))", "nan"),
    Bug("nan", "literals that are no number are zero", "backends.source.ctext:number_text",
        'return "cuts_nan()"', 'return "0.0f"', "tests/kernels/test_numbers.py"),
    Bug("nan", "both infinities are positive", "backends.source.ctext:number_text",
        '"cuts_inf()" if number > 0 else "(-cuts_inf())"', '"cuts_inf()"', "sweep"),
    # ---- wraparound and division
    _helper("cuts_div_i32", "a number over -1 is itself", "(int)(0 - (unsigned int)a)", "a"),
    _helper("cuts_div_u64", "a division by zero is left to C", "b == 0 ? 0 : ", ""),
    _helper("cuts_mod_i32", "a remainder has the sign of its numerator", "r + b : r", "r : r"),
    _helper("cuts_mod_u32", "an unsigned remainder is a quotient", "a % b", "a / b"),
    _helper("cuts_rem_i64", "mod of i64 by -2 with fmod is zero", "|| b == -1 ", "|| b == -2 "),
    _helper("cuts_abs_i16", "the size of a negative number is itself", "a < 0", "a < -1"),
    _helper("cuts_pow_i64", "powers are computed in 32 bits", "unsigned long r = 1, x", "unsigned int r = 1, x"),
    _helper("cuts_pow_i8", "a negative power of -1 is 1", "a == -1 ? -1 : 0", "0"),
    _helper("cuts_shl_i32", "a shift by all bits is left to C", "(unsigned int)b < 32", "1"),
    _helper("cuts_shr_i32", "a sign is not shifted in", "a < 0 ? -1 : 0", "0"),
    _helper("cuts_shr_u8", "a byte is shifted by at most three", "(unsigned int)b < 8", "(unsigned int)b < 4"),
    Bug("wrap", "unsigned arithmetic has 32 bits", "backends.source.ctext:_wrapping_text",
        "unsigned = unsigned_of(dtype)", "unsigned = DType.U32", "sweep"),
    Bug("wrap", "narrow sums are not cut back", "backends.source.ctext:_wrapping_text",
        'return f"(({dialect.type(dtype)}){', 'return f"((int){', "sweep"),
    Bug("wrap", "operators on integers do not wrap", "backends.source.ctext:call_text",
        "if function.wraps and dtype.is_int:", "if function.wraps and dtype.element.kind == 'never':",
        "tests/kernels/test_numbers.py"),
    Bug("wrap", "integers are divided as floats", "backends.source.ctext:call_text",
        "function.c_int or function.c", "function.c", "sweep"),
    Bug("wrap", "folded integers do not wrap", "ops.fold:Folder._constant",
        "np.float64 if a.dtype.is_float else a.dtype.numpy", "np.float64 if a.dtype.is_float else np.int64",
        "tests/ops/test_fold.py"),
    Bug("wrap", "interpreted sums are wider than their type", "passes.fusion.interpret:_run_segment",
        "dtype=values.dtype", "dtype=None",
        "tests/fusion/test_semantics.py"),
    # ---- conversions
    Bug("conversion", "a cast keeps the value", "backends.source.ctext:convert_text",
        'f"(({dialect.type(new)}){text})"', 'f"({text})"', "sweep"),
    Bug("conversion", "a conversion to bool cuts off", "ir.evaluation:Evaluation._cast", "np.asarray(value != 0)",
        "np.asarray(value >= 1)", "sweep"),
    Bug("conversion", "reals are rounded to integers", "ir.evaluation:saturate", "np.trunc(value)", "np.rint(value)"),
    Bug("conversion", "a way through a narrower integer is dropped",
        "passes.graph.simplification.compose_movement:_holds",
        "wide.element.digits >= narrow.element.digits", "wide.element.digits >= 0",
        "tests/graph_passes/test_passes.py"),
    Bug("conversion", "a way from reals to integers and back is dropped",
        "passes.graph.simplification.compose_movement:_holds",
        "return wide.is_float and wide.size > narrow.size", "return wide.is_int or wide.size > narrow.size"),
    # ---- half precision
    Bug("half", "a half is read as the one before it", "backends.source.dialect.dialects:OPENCL.load[f16]",
        "vload_half({i}, {p})", "vload_half({i}, {p} - ({i} > 0))", "sweep"),
    Bug("half", "halves are stored towards zero", "backends.source.dialect.dialects:OPENCL.store[f16]", "vstore_half(",
        "vstore_half_rtz(", "tests/kernels/test_halves.py"),
    Bug("half", "shared halves are laid out as bytes",
        "backends.source.dialect.dialects:OPENCL.shared_bits[half]", "ushort",
        "uchar", "tests/kernels/test_shared_memory.py"),
    # ---- the width of indices
    _helper("cuts_index_i64", "an index beyond 32 bits is cut", "i < (long)n", "(int)i < n", "width"),
    _helper("cuts_index_i64", "a negative index counts from the end only once it is less than -1",
            "i = i < 0 ? i + n : i;", "i = i < -1 ? i + n : i;", "width"),
    _helper("cuts_index", "an index past the end reads past it", "i < (int)n ? (int)i : n - 1", "i", "width"),
    _helper("cuts_wrap_i64", "an index too large equals the last one", ": n;", ": n - 1;", "width"),
    _helper("cuts_index_i64", "an index too small is the last one", "i < 0 ? 0", "i < 0 ? n - 1", "width"),
    Bug("width", "all indices go through an int", "backends.source.index_ctext:index_suffix",
        'dtype.size < 4 or dtype is DType.I32', "True", "sweep"),
    # ---- borders
    Bug("border", "pieces of a border begin one element late", "ops.gradient.terms.pieces:pieces_of",
        "Piece(argument, low + at, count,", "Piece(argument, low + at + (at > 0), count,",
        "tests/gradients/test_borders.py"),
    Bug("border", "a mirrored piece keeps its direction", "ops.gradient.terms.pieces:_runs",
        "int(steps[starts[longest]])", "abs(int(steps[starts[longest]]))", "tests/gradients/test_borders.py"),
    Bug("border", "a clamp ends one element late", "ir.affine.index:Clamp.of", "np.clip(value, self.low, self.high)",
        "np.clip(value, self.low, self.high - (self.high > self.low))"),
    # ---- the reference, which the second opinion is there for
    Bug("reference", "a factor leaves a sum of infinities", "ops.contract:_summed_alone",
        "if np.isfinite(left).all() and np.isfinite(right).all():", "if True:", "tests/ops/test_reference.py"),
    Bug("reference", "integers are divided downwards", "ir.functions:_divide",
        "floor + ((rest != 0) &", "floor + ((rest != rest) &", "sweep"),
    Bug("reference", "tiny coefficients are distinguished by their digits", "ops.linear:_pairs_of",
        'float(f"{terms[second] / terms[first]:.{_DIGITS}g}")', "round(terms[second] / terms[first], _DIGITS)",
        "tests/ops/test_linear.py"),
    Bug("reference", "a branch that is not taken meets its infinity", "ops.gradient.derivatives:_is_conditional",
        'if expr.fn == "select":', 'if expr.fn == "none":', "tests/gradients/test_saturation.py"),
)  # fmt: skip
