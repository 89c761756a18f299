"""Closed forms of the BigCuts thesis (section 4.2.2).

They are the forms as printed, and as used for its Table 5.6. Both are one set of formulas under a `Reading`: a list of
their differences. Bytes and seconds are separate, unlike in the printed `TIME_COMM = COMM_STORAGE / BW + COMM_DP +
COMM_P`. Neither form knows micro-batches, memory or residency.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ..plans import MOMENTS, Column, Machine, Terms, Transformer, Ways, zeros


@frozen
class Reading:
    """Reading of the thesis' formulas.

    `operators` are complex operators of a layer in a forward and backward pair, `neurons` the outputs of all of them
    together in widths. `exchanged` gives each policy the other's traffic to storage, and parameter traffic the other's
    bandwidth. `partitioning` counts the exchange of GPUs within a layer.
    """

    name: str
    operators: int
    neurons: int
    exchanged: bool
    partitioning: bool


#: The text: the four matrix products of a layer, and no COMM_WP in TIME_COMM.
AS_PRINTED = Reading("as-printed", operators=4, neurons=9, exchanged=False, partitioning=False)
#: The reading that reproduces the table.
TABLE_5_6 = Reading("table-5.6", operators=2, neurons=3, exchanged=True, partitioning=True)


def thesis_terms(ways: Ways, model: Transformer, machine: Machine, reading: Reading, *, training: bool = True) -> Terms:
    """Score ways by the thesis' formulas.

    Inference has no optimiser, no gradients, and half of the traffic of a pair of passes.
    """
    dp, wp, p = (column.astype(float) for column in (ways.dp, ways.wp, ways.p))
    operators = reading.operators * model.layers
    parameters = 12 * model.hidden**2 * model.layers  # of all operators: NUM_PARAM * NUM_OP
    neurons = reading.neurons * model.hidden * model.sequence * model.layers  # NUM_ACT * NUM_OP
    pair = 1.0 if training else 0.5
    moves_parameters = ways.pr if reading.exchanged else ~ways.pr
    activation_bytes = 4 * neurons * model.batch / (dp * p)
    parameter_bytes = 2 * parameters * model.batch / (wp * p)
    storage_bytes = pair * np.where(moves_parameters, parameter_bytes, activation_bytes)
    # COEF_OPTIMIZER values of a parameter, read and written in 4 bytes: the parameter, its gradient, the moments.
    optimiser_bytes = 8 * (MOMENTS[model.optimiser] + 2) * parameters / (wp * p) if training else zeros(dp)
    wp_bytes = pair * 2 * neurons / (p * dp) * np.log2(wp) * model.batch * reading.partitioning
    dp_bytes = 2 * (parameters / operators / wp) * np.log2(dp) if training else zeros(dp)
    pipeline_bytes = pair * 2 * (neurons / operators / dp) * model.batch
    swapped = moves_parameters & reading.exchanged
    from_storage: Column = np.where(swapped, machine.thesis_link, machine.storage_read)
    between: Column = np.where(swapped, machine.storage_read, machine.thesis_link)
    flops = (3.0 if training else 1.0) * 2 * model.sequence * parameters * model.batch
    compute = flops / (machine.efficiency * machine.peak * dp * wp * p)
    moved = (storage_bytes + optimiser_bytes) / from_storage + (wp_bytes + dp_bytes + pipeline_bytes) / between
    return Terms(
        compute=compute,
        storage=storage_bytes / from_storage,
        wp=wp_bytes / between,
        dp=dp_bytes / between,
        pipeline=pipeline_bytes / between,
        optimiser=optimiser_bytes / from_storage,
        bubble=zeros(dp),
        total=np.maximum(compute, moved),
        read=storage_bytes,
        write=zeros(dp),
        optimiser_read=optimiser_bytes / 2,
        optimiser_write=optimiser_bytes / 2,
        wp_bytes=wp_bytes,
        dp_bytes=dp_bytes,
        pipeline_bytes=pipeline_bytes,
    )
