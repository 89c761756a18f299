"""Graph passes: canonical form, gradients, losses, index checks."""

from .attach_loss import with_loss
from .base import Pass, memoised_passes, run_passes
from .gradient import differentiate_graph
from .guard_indices import Checked, check_indices
from .precision import LowerPrecision
from .rematerialise import Rematerialise
from .repeated_layers import KEPT_FIRST, Place, RepeatedLayers, find_repeated_layers
from .rewrite import fresh_name, prune
from .simplification import Canonicalise, SinkBroadcasts, canonical_passes
