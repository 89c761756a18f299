"""Layer profiles of a device: training data of the latency models.

cuts latency profile --gpu 0                    a profile of one's own, in minutes
python -m cuts.latency.profiling --out DIR      records of chosen sets of layers
"""

from .tasks import LayerTask
from .trace import TracedKernel
from .user_profile import MadeProfile, profile_gpu, profile_kernels
