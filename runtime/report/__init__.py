"""A plan as one self-contained HTML page: what was cut where and why, what each kernel takes, what else was tried.

`page` puts the page together, `section` says what it shows of one plan, `picture` draws its launches and what they
hand on, `chart` draws curves.
"""

from .chart import StepCurve, chart
from .page import html_page
from .section import Evidence, Tried, html_section

__all__ = ["Evidence", "StepCurve", "Tried", "chart", "html_page", "html_section"]
