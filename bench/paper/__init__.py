"""Tables and figures of the four documents, a module per document.

    python -m cuts.bench paper                                     list documents and tables
    python -m cuts.bench paper deepcuts --table 11                 compute the missing rows, print the table
    python -m cuts.bench paper deepcuts --table 11 --print         only print the rows of the file

A module is named after its document and has `TABLES`, a tuple of `PaperTable`.
"""

from .registry import DOCUMENTS, PaperTable, TableRequest, read_table, row_of, tables_of

__all__ = ["DOCUMENTS", "PaperTable", "TableRequest", "read_table", "row_of", "tables_of"]
