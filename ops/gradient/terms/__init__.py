"""Terms of the gradients of statements: sums, reads and conditions."""

from .statement_terms import StatementTerms
from .terms import Term
