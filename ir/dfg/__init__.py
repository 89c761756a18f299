"""Folded data-flow graphs of a phase.

A node stands for a family of scalar operations over a box of unrolled variables. Nodes are frozen and compare by value,
so equal computations are one node. The variables that a family ranges over (its *box*) are the variables that it
mentions: the box of an operand is part of the box of its user, a missing axis is a broadcast. The scalar graph of the
paper (DeepCuts section 5.1, Figure 3) is the expansion of the families.

A phase's graph is an ordered tuple of *roots*, the nodes with an effect; everything else is reached from them.
"""

from .roots import (
    PEERS,
    Accumulate,
    AsyncCopy,
    DfgNode,
    Initialise,
    LaneProduct,
    LaneReduce,
    Mma,
    MmaAccumulate,
    RegisterWrite,
    Root,
    Store,
    VectorStore,
    WarpgroupMma,
    WideStore,
)
from .values import (
    Convert,
    IndexNode,
    LdMatrix,
    Literal,
    Load,
    Op,
    Pack,
    PackedConvert,
    PackedLoad,
    RegisterRead,
    SharedMatrix,
    Test,
    Value,
    VectorLoad,
    Window,
)
from .walk import (
    box_variables,
    buffer_accesses,
    node_users,
    operand_nodes,
    own_indices,
    own_variables,
    post_order,
    substitute_indices,
    substitute_node,
    vector_axes,
    with_indices,
    with_operands,
)
