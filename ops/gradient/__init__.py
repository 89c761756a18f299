"""Gradients in index notation.

Adjoints of statements, simplified, and written back as declarations.
"""

from .declare import declare
from .differentiable import differentiability
from .gradients import Gradients
from .mixed_radix import Digit, digit_of, digits_of

__all__ = ["Digit", "Gradients", "declare", "differentiability", "digit_of", "digits_of"]
