"""Gradients in index notation.

Adjoints of statements, simplified, and written back as declarations.
"""

from .declare import declare
from .differentiable import differentiability
from .gradients import Gradients
