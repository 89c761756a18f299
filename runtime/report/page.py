"""Frame, style and script of the page, around given sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Template


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def template(name: str) -> Template:
    """Return a template of this folder, which escapes every text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    templates = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template(name)


def html_page(title: str, environment: Mapping[str, object], sections: Sequence[Markup]) -> str:
    """Return a page of sections.

    `environment` has the place and the time of its making.
    """
    style, script = Markup(_read("style.css")), Markup(_read("script.js"))
    return template("page.html").render(
        title=title, environment=environment, sections=sections, style=style, script=script
    )
