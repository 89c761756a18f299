"""Evaluation of the expressions of declarations on shapes and tensors."""

from .builtins import ABOUT_TENSORS, BUILTINS, CONSTANTS
from .evaluator import ExpressionEvaluator, Located
from .values import Absent, TensorList, TensorRef, Trouble, Value, describe, to_expr
