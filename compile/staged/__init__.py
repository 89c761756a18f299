"""Models and programs in stages, each with its plan."""

from .staged_model import model_plan, open_model
from .staged_plan import Compile, StagedPlan
from .staged_program import ProgramPlan, open_program, program_plan
