"""Frame, style and script of the page, around given sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


#: Templates of this folder; every text that they are given is escaped.
TEMPLATES = Environment(
    loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def html_page(title: str, environment: Mapping[str, object], sections: Sequence[Markup]) -> str:
    """Return a page of sections.

    `environment` has the place and the time of its making.
    """
    style, script = Markup(_read("style.css")), Markup(_read("script.js"))
    return TEMPLATES.get_template("page.html").render(
        title=title, environment=environment, sections=sections, style=style, script=script
    )
