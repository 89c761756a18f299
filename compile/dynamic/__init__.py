"""Plans for ranges of sizes: dims, buckets, choice at each call."""

from .buckets import WASTE, BucketBuilder, choose_buckets, share_constants
from .build_dynamic import build_dynamic
from .dynamic_plan import BucketPlan, DynamicPlan, open_dynamic
from .model_family import ModelFamily, load_at_sizes, model_family
from .shapes import DimRange, ShapeRequest, SymbolicShape, read_range, read_shapes
