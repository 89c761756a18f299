"""Checks of declarations, and binding of their operands."""

from .binding import CLASSES, Binding, bind_attribute, bind_operands, check_shapes
from .check_declarations import check_declaration
from .check_expressions import RESERVED_NAMES, children, names_read, reads_itself, reads_unwritten
