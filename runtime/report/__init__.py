"""Report of a plan as one self-contained HTML page.

It shows the partition with its reasons, the times of kernels, and rejected candidates. `page` assembles the page,
`section` describes one plan, `picture` draws its launches and their data flow, `chart` draws curves.
"""

from .chart import StepCurve, chart
from .page import html_page
from .section import CandidateOutcome, Evidence, html_section
