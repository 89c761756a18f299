"""Text of declarations: syntax tree, parser and printer."""

from . import syntax
from .parser import PLACEHOLDER, parse_all, parse_expression, parse_piece, parse_written, pieces
from .parser_cache import ParserCache, provide_parser_cache
from .printer import print_expression, print_item
