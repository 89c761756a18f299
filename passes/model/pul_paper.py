"""Performance upper limit (PUL) of the paper, with corrections.

`PUL = GMRatio * SMRatio * WBRatio * COEF_r` (DeepCuts section 4.2 and 4.3). Corrections, each where the printed text
contradicts itself or the hardware:

* Section 4.2, `WBRatio`: printed as `1 - ((N_TB mod N_SM) / N_SM) / ceil(N_TB / N_SM)`, which gives 133 blocks on 132
  SMs 0.996 and 131
  blocks 0.008. The share of busy SMs over the waves is `N_TB / (N_SM * ceil(N_TB / N_SM))`; `N_TB` takes a ceiling per
  axis.
* Tables 7 and 8, direct convolution and pooling: the printed input tile is the output-size formula. The rows a tile of
  outputs reads
  are `(H_block - 1) * S_H + (F_H - 1) * D_H + 1`, at most the image's.
* Table 8: `W_block / (W_block / TRANS)` means `ceil(W_block / TRANS)` transactions per row.
* Table 7, convolution: the filter's term is divided by `TRANS_global`, a unit of global memory; loads of shared memory
  are counted.
* Section 4.2, `COEF_r`: `<` is `<=`, a block may use all of the machine.

Fusion follows section 4.4: at the register level loads and transactions are the predecessor's and computations add up;
at the shared level every operation has its own PUL, shared-memory tensors are free, and the group's is the harmonic
mean weighted by computation (the ratio of peak to achieved time adds up).
"""

from __future__ import annotations

import numpy as np

from ...ir import Target
from ..geometry import Count
from .feature_schema import Features, PaperCounts

#: Bytes of an element of the paper's tensors.
SIZE_ELEMENT = 4


def gm_ratio(counts: PaperCounts, target: Target) -> Count:
    """Return the share of peak that global memory permits a block.

    It is its operational intensity over the machine's balance.
    """
    moved = SIZE_ELEMENT * target.TRANS_global * counts.transactions
    balance = target.PERF_peak / target.BW_global
    return np.minimum(1.0, counts.comp_block / np.maximum(moved, 1e-9) / balance)


def sm_ratio(counts: PaperCounts, target: Target, conflicts: Count = 1.0) -> Count:
    """Return the shared-memory latency that arithmetic hides, as a share.

    `conflicts` is `COEF_bc`.
    """
    per_load = counts.comp_thread / np.maximum(counts.loads, 1e-9)
    return np.minimum(1.0, per_load / (target.LAT_shared * conflicts))


def wb_ratio(blocks: Count, sms: int) -> Count:
    """Return the share of SMs that work, over a grid's waves."""
    return blocks / (sms * np.ceil(blocks / sms))


def coef_r(features: Features, target: Target) -> Count:
    """Return 1 where a block fits the machine, else 0.

    Its threads and its shared memory count.
    """
    fits = np.logical_and(features.threads <= target.MAX_thread, features.shared <= target.MAX_shared)
    return np.where(fits, 1.0, 0.0)


def pul(features: Features, target: Target, conflicts: Count = 1.0) -> Count:
    """Return the performance upper limit as a share of peak.

    It is 0 where the candidate does not fit.
    """
    ratio = performance_limit(features, target, conflicts)
    return ratio * wb_ratio(features.grid, target.NUM_SM) * coef_r(features, target)


def performance_limit(features: Features, target: Target, conflicts: Count = 1.0) -> Count:
    """Return `GMRatio * SMRatio` of a group from its segments' counts."""
    work: Count = 0.0
    time: Count = 0.0
    for counts in features.segments:
        achieved = gm_ratio(counts, target) * sm_ratio(counts, target, conflicts)
        work = work + counts.comp_block
        time = time + counts.comp_block / np.maximum(achieved, 1e-12)
    return np.where(np.greater(work, 0), work / np.maximum(time, 1e-12), _moving_only(features, target))


def _moving_only(features: Features, target: Target) -> Count:
    """Return the ratio of a group without arithmetic: one operation per loaded element, so that candidates still
    differ.
    """
    loads: Count = sum((c.transactions for c in features.segments), 0.0)
    elements = np.maximum(1.0, features.bytes / SIZE_ELEMENT)
    balance = target.PERF_peak / target.BW_global
    return np.minimum(1.0, elements / np.maximum(SIZE_ELEMENT * target.TRANS_global * loads, 1e-9) / balance)
