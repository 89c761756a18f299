"""Text form of Index IR, schedules, Kernel IR and data-flow graphs.

Parsing a printed text returns an equal object.

    var n < 1, k < 2, p < 4, q < 4, c < 2

`FORMS` lists how each class reads; printer and parser both follow it, so a new class needs a line there and nothing
else. `FORMER_KEYWORDS` are earlier spellings of keywords, which are parsed too. A data-flow graph is a list of values,
each once and after its operands, and of the roots that use them:

    %0: f32 = load shared s0[2*k + u]
    %1: f32 = %0 * 2.0
    store global y[u]: f32 = %1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..compiled import Storage
from ..dfg import (
    Accumulate,
    AsyncCopy,
    Convert,
    IndexNode,
    Initialise,
    LaneProduct,
    LaneReduce,
    LdMatrix,
    Load,
    Mma,
    MmaAccumulate,
    Pack,
    PackedConvert,
    PackedLoad,
    RegisterRead,
    RegisterWrite,
    SharedMatrix,
    Store,
    Test,
    VectorLoad,
    VectorStore,
    WarpgroupMma,
    WideStore,
    Window,
)
from ..kernel import (
    Barrier,
    BulkCopy,
    BulkFetch,
    Commit,
    Define,
    HorizontalKernel,
    Kernel,
    LaneExchange,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Phase,
    Producer,
    ProductCommit,
    ProductFence,
    ProductWait,
    ProxyFence,
    Share,
    SharedBuffer,
    TurnPass,
    TurnWait,
    Wait,
)
from ..machine import TensorMap
from ..schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from ..segment import FusedGroup, Output, Reduction, Segment
from ..source import Source
from ..statement import Program, Statement
from .forms import Form, field_defaults
from .indices import IndexNames, parse_declarations
from .parser import Parser
from .printer import Printer, variables_of
from .tokens import DROPPED_KEYWORDS, FORMER_KEYWORDS, Tokens, quote

#: A name, or a string.
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*')
_FORMER_SPELLINGS = {today: former for former, today in FORMER_KEYWORDS.items()}
_KEYWORDS = frozenset({"if", "else", "inf", "nan", "true", "false", "clamp", "var"}) | DROPPED_KEYWORDS


def _options(kind: type, *others: str) -> str:
    """Return the templates of a class's fields with a default, except `others`."""
    templates = {bool: "{{? {0}<!{0}>?}}", tuple: "{{? {0} (<{0}>)?}}"}
    given = ((name, default) for name, default in field_defaults(kind).items() if name not in others)
    return "".join(templates.get(type(default), "{{? {0} <{0}>?}}").format(name) for name, default in given)


FORMS: dict[type, Form] = {
    # Index IR
    Program: Form(
        "program",
        (
            "*tensors: tensor <key>: <value>",
            "*constants: constant <key> = [<value>]",
            "inputs <inputs>",
            "outputs <outputs>",
            "*statements",
        ),
    ),
    Statement: Form(
        "let <target>[<write>]{? into <into>?}{? atomic<!atomic>?} for (<axes>){? step <step>?}{? along <along>?} = "
        "{?<combine> over (<reduce>) of ?}<body>"
    ),
    FusedGroup: Form(
        "group",
        (
            "*tensors: tensor <key>: <value>",
            "*constants: constant <key> = [<value>]",
            "inputs <inputs>",
            "outputs <outputs>",
            "shared <shared>",
            "*segments",
        ),
    ),
    Segment: Form("segment (<axes>)", ("*reductions", "*outputs")),
    Reduction: Form("reduce <name> = <combine>{? as <math>?}{? along <along>?} over (<reduce>) of <body>"),
    Output: Form(
        "output <tensor>[<write>]{? into <into>?}{? across <across>?}{? for (<extra>)?}{? if <guards>?} = <body>"
    ),
    Storage: Form(
        "storage <buffer> offset <offset> strides (<strides>)"
        "{? by <by> turns <iterations>?}{? period <period> phase <phase>?}"
    ),
    # Schedules
    Schedule: Form("schedule" + _options(Schedule), ("*segments",)),
    SegmentSchedule: Form("spread" + _options(SegmentSchedule, "reductions"), ("*dims", "*reductions")),
    TileDim: Form("tile (<axes>) block <block> thread <thread>" + _options(TileDim)),
    ReductionSchedule: Form("k_loop" + _options(ReductionSchedule, "staging"), ("*dims", "*staging")),
    ReduceDim: Form("block_k (<axes>) by <block_k>"),
    Staging: Form("stage <operand>" + _options(Staging)),
    # Kernel IR
    Kernel: Form(
        "kernel blocks <blocks> threads <threads>{? min_blocks <min_blocks>?}{? launched <launched>?}"
        "{? teams <teams>?}{? cluster <cluster>?}",
        (
            "reads <reads>",
            "writes <writes>",
            "*dtypes: dtype <key>: <value>",
            "*aligned: aligned <key>: <value>",
            "*constants: constant <key> = [<value>]",
            "*maps",
            "*shared",
            "*defines",
            "*producer",
            "*items",
        ),
    ),
    HorizontalKernel: Form("bundle", ("*kernels",)),
    SharedBuffer: Form(
        "buffer <name>: <dtype>[<elements>]{? matrix <extent> by <depth>?}{? deep<!deep>?}{? swizzle <swizzle>?}"
        "{? boxed<!boxed>?}"
    ),
    TensorMap: Form(
        "tensor_map <name> of <tensor>: <dtype> dims (<dims>) strides (<strides>) box (<box>){? swizzle <swizzle>?}"
        "{? rounded <rounded>?}{? walks (<pixels>)?}{? from (<starts>)?}{? by (<steps>)?}"
    ),
    Define: Form("define <var> = <value>"),
    Loop: Form("loop <var>{? until <until>?}{? once<!at_least_once>?}{? unroll <unroll>?}", ("*body",)),
    Phase: Form(
        "phase <kind> <name>{? async<!asynchronous>?}{? l1<!l1>?}{? when <when>?}{? unroll <unrolled>?}"
        "{? scopes <scopes>?}",
        ("*shares", "*roots"),
    ),
    Share: Form("share <var>{? for <operand>?} = <value> register <register>{? valid <valid>?}"),
    Barrier: Form("barrier"),
    Commit: Form("commit"),
    Wait: Form("wait <pending>"),
    ProxyFence: Form("fence_proxy"),
    ProductFence: Form("fence_products{? of (<names>)?}"),
    ProductCommit: Form("commit_products"),
    ProductWait: Form("wait_products <pending>{? of (<names>)?}{? after (<before>)?}"),
    TurnWait: Form("wait_turn"),
    TurnPass: Form("pass_turn from <first> to <last>"),
    LaneExchange: Form("exchange_lanes of <name> along <dim>"),
    Producer: Form("producer" + _options(Producer), ("*body",)),
    MbarrierInit: Form("init_mbarriers <barriers> for <arrivals>"),
    BulkFetch: Form("bulk_fetch <barriers>[<slot>] bytes <nbytes>{? when <when>?}", ("*copies",)),
    BulkCopy: Form("bulk_copy <map>[<coordinates>] to <buffer>[<address>]"),
    MbarrierArrive: Form("arrive_mbarrier <barriers>[<slot>]{? when <when>?}"),
    MbarrierWait: Form("wait_mbarrier <barriers>[<slot>] parity <parity>"),
    # Data-flow graphs: roots, and values (whose type the line itself shows)
    Store: Form(
        "store <space> <buffer>[<address>]{? into <into>?}: <dtype> = <value>{? over <axis>?}{? when (<when>)?}"
        "{? within <size>?}{? if <guards>?}"
    ),
    VectorStore: Form(
        "vector_store <space> <buffer>[<address>]: <dtype> = <value> over <axis> by <width>{? as <conversion>?}"
        "{? when (<when>)?}{? if <guards>?}"
    ),
    AsyncCopy: Form(
        "async_copy <instruction> <buffer>[<address>]: <dtype> = <source>[<start>]{? over <axis> by <width>?}"
        "{? if <guards>?}{? valid <valid>?}"
    ),
    WideStore: Form("stores <space> <buffer>[<address>]: <dtype> = (<values>){? if <guards>?}"),
    Accumulate: Form("accumulate <name>[<at>]: <dtype> = <combine> of <value>{? over (<over>)?}{? along <axis>?}"),
    LaneProduct: Form(
        "multiply_lanes <instruction> <name>[<at>]: <dtype> = <a> * <b> over <axis>{? distance <distance>?}"
        "{? rows (<rows>)?}"
    ),
    Mma: Form("mma <instruction> <name>[<results>]: <dtype> = <a> * <b>{? over (<over>)?} registers (<axes>)"),
    WarpgroupMma: Form(
        "warpgroup_mma <instruction> columns <columns>{? pitch <pitch>?} <name>[<upper>][<lower>]: <dtype> = <a> * <b>"
        "{? over (<over>)?}{? begins<!begins>?}"
    ),
    MmaAccumulate: Form(
        "multiply <name>[<at>]: <dtype> by <mma>{? rows <rows>?}{? columns <columns>?} of <a> and <b>"
        "{? over (<over>)?}{? registers (<axes>)?}{? lane <lane>?}{? mixed (<mixed>)?}"
        "{? begins<!begins>?}{? turned<!turned>?}"
    ),
    RegisterWrite: Form(
        "keep <name>[<at>] of (<shape>): <dtype> = <value>{? for <operand>?}{? registers (<axes>)?}{? lane <lane>?}"
    ),
    Initialise: Form("initialise <name>[<shape>]: <dtype> for <combine>"),
    LaneReduce: Form(
        "reduce_threads <name>[<shape>]: <dtype> <combine> over <threads>"
        "{? along <along>?}{? vector <vector>?}{? of <keys>?}{? extent <extent>?}{? ranks (<ranks>)?}"
        "{? blocks <blocks>?}{? place <place>?}{? stride <stride>?}{? whole <whole>?}"
        "{? shifted <shifted>?}{? tree <tree>?}"
    ),
    Load: Form("load <space> <buffer>[<address>]{? if <guards> else <fill>?}"),
    RegisterRead: Form("held <name>[<at>]"),
    IndexNode: Form("index <index>"),
    Test: Form("inside(<guards>)"),
    Convert: Form("convert <arg>"),
    Pack: Form("pack <arg> over <axis>"),
    VectorLoad: Form(
        "vector_load <space> <buffer>[<address>] over <axis> by (<pieces>){? of <stored>?}"
        "{? bits <bits>?}{? less <zero>?}{? if <guards> else <fill>?}"
    ),
    PackedConvert: Form("convert_words <arg> through <through> over <axis>"),
    PackedLoad: Form("packed_load <space> <buffer>[<address>]"),
    LdMatrix: Form("ldmatrix <instruction> <buffer>[<row>] over (<axes>)"),
    SharedMatrix: Form("matrix <buffer>[<start>]{? turned<!turned>?}"),
    Window: Form("window <load> over (<axes>) at (<at>)"),
}


def print_ir(node: Any) -> str:
    """Return the text of a node, ending in a newline.

    Its class is any class in `FORMS` that is not a value.
    """
    names = IndexNames(_KEYWORDS)
    names.declare(variables_of(node))
    head = names.declarations()
    return "\n".join([*head, *([""] if head else []), *Printer(FORMS, names).node(node), ""])


def rename_in_text(text: str, names: Mapping[str, str]) -> str:
    """Rename words of a printed text.

    They are plain identifiers that nothing else in the text has.
    """
    return _WORD.sub(lambda word: quote(names[word[0]], _KEYWORDS) if word[0] in names else word[0], text)


def renew_keywords(schedule: str) -> str:
    """Replace former keywords in the text of a schedule."""
    return rename_in_text(re.sub(f" ({'|'.join(DROPPED_KEYWORDS)})\\b", "", schedule), FORMER_KEYWORDS)


def use_former_keywords(schedule: str) -> str:
    """Return the text of a schedule in its former spelling.

    Keys of stored measurements are digests of it. Every warp layout was one where lanes alternate.
    """
    return re.sub(r"\bwarp \([^)]*\)", r"\g<0> zigzag", rename_in_text(schedule, _FORMER_SPELLINGS))


def parse_ir(text: str, name: str = "<ir>") -> Any:
    """Read one node from its text."""
    tokens = Tokens(Source(name, text))
    parser = Parser(FORMS, tokens, parse_declarations(tokens))
    node = parser.root() if tokens.follows("%") else parser.node(tuple(FORMS))
    if tokens.peek().kind != "end":
        raise tokens.fail("the end of the text")
    return node
