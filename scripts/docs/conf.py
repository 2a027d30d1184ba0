"""Sphinx reads this: how the documentation is built (see `build` beside it)."""

from __future__ import annotations

import builtins
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy
import pydantic
from docutils import nodes

import dustmap

# The extension beside this file.
sys.path.insert(0, str(Path(__file__).parent))

_ROOT = Path(dustmap.__file__).resolve().parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

project = "dustmap"
author = _PROJECT["authors"][0]["name"]
project_copyright = author
version = release = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "mathml",
]
html_math_renderer = "mathml"
templates_path = ["_templates"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

# A type such as `bytes` is taken for the attributes of that name.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"dustmap {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["math.css"]

autosummary_generate = True
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# A default is shown as it is written, not as the object it makes.
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
# Types stand in the signature; a shape such as "*q" is no text to be set.
napoleon_attr_annotations = False

# The parts of an autograd function, which nobody calls by name.
_AUTOGRAD = ("forward", "backward", "setup_context")


def _keep_colons(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """A property's docstring is text, and no type before its first colon."""
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]


def _skip_borrowed(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """What other packages put into a class or module is theirs to document."""
    home = str(getattr(obj, "__module__", None) or "dustmap").partition(".")[0]
    inherited = name in _AUTOGRAD and getattr(obj, "__doc__", None) is None
    return True if inherited or home not in ("dustmap", "pipelines") else None


def _short_settings(
    app: Any, what: str, name: str, obj: Any, options: Any, *signature: Any
) -> tuple[str, None] | None:
    """Settings have a keyword for every field, which `dustmap config` lists better."""
    settings = what == "class" and issubclass(obj, pydantic.BaseModel)
    return ("(**settings)", None) if settings else None


def _resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """With -n, a name is at fault only if nothing that is imported has it.

    Names of ours may stand without their module. Those of other packages, type
    variables and aliases are text: the build does without the network.
    """
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].partition("[")[0].strip("'\"")
    last = name.rpartition(".")[2]
    known = env.domains.python_domain.objects
    pages = [full for full in known if full == last or full.endswith(f".{last}")]
    if pages and last[:1].isupper():
        page = min(pages, key=len)
        refuri = app.builder.get_relative_uri(node["refdoc"], known[page].docname)
        link = nodes.reference("", "", internal=True, refuri=f"{refuri}#{page}")
        link += contnode
        return link
    shape = node["reftarget"].startswith("'")
    return contnode if shape or _exists(name) else None


def _exists(name: str) -> bool:
    """Whether something that is imported, Python's or ours, has the name."""
    head, *rest = name.split(".")
    if rest and head not in ("dustmap", "pipelines") and head in sys.modules:
        return True
    ours = [m for n, m in sys.modules.items() if n.startswith(("dustmap", "pipelines"))]
    places = [builtins, numpy, *ours]
    owner, last = name.split(".")[-2:] if rest else ("", head)
    owners = [vars(m)[owner] for m in ours if owner in vars(m)]
    return any(hasattr(place, last) for place in [*places, *owners])


def _own_branch(
    app: Any, page: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """The sidebar opens the branch of its page: the API has hundreds of modules."""
    whole = context.get("toctree")
    if whole is not None:
        context["toctree"] = lambda **wanted: whole(**{**wanted, "collapse": True})


def setup(app: Any) -> None:
    """Before napoleon and the theme, whose listeners have the priority 500."""
    app.connect("html-page-context", _own_branch, priority=400)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)
    app.connect("autodoc-process-signature", _short_settings)
    app.connect("autodoc-skip-member", _skip_borrowed)
    app.connect("missing-reference", _resolve)
