"""Exported programs as graphs: archives, decomposition and import."""

from .archive import load_program
from .computed_sizes import computed_dims, computed_symbols, graph_at_sizes
from .decomposition import CoreProgram, core_program
from .importer import exported_program, program_name, read_torch
from .load import define_placeholders, graph_of_nodes
from .precompilation import CompileModule, save_precompiled
from .sized_programs import MAX_UNBOUNDED_SIZE, SizedProgram, sized_program
