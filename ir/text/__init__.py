"""Texts of graphs, statements, schedules, kernels and data-flow graphs."""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .forms import Lines, Maybe, Part, Word, field_types, members
    from .graphs import parse_graph, print_graph
    from .nodes import FORMS, parse_ir, print_ir, rename_in_text, renew_keywords, use_former_keywords

__getattr__ = lazy_exports(__name__)
