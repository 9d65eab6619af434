"""Settings of the documentation site: ``make docs``.

Pages are the Markdown files of this folder, as a reader of the repository finds them; the reference is made from the
public names.  Nothing is fetched, and the site works from a disk, its search included.
"""

import importlib
import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))
os.environ.setdefault("MPLBACKEND", "agg")

import flowcharts  # noqa: E402
from docutils import nodes  # noqa: E402

import spectile  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = html_title = PROJECT["name"]
author = copyright = PROJECT["authors"][0]["name"]
version = release = spectile.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery", "paper", "_templates"]
templates_path = ["_templates"]

#: Pages of wide tables, which have their contents below those of their section instead of beside themselves.
WIDE = [
    page.relative_to(DOCS).with_suffix("").as_posix()
    for pages in ("study.md", "performance/*.md", "notes/**/*.md")
    for page in DOCS.glob(pages)
]

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", PROJECT["urls"].get("Documentation", ""))
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "show_prev_next": False,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], **{page: [] for page in WIDE}},
}
if "Repository" in PROJECT["urls"]:
    html_theme_options["icon_links"] = [
        {"name": "Repository", "url": PROJECT["urls"]["Repository"], "icon": "fa-solid fa-code-branch"}
    ]
html_sidebars = {"index": [], **{page: ["sidebar-collapse", "sidebar-nav-bs", "page-toc"] for page in WIDE}}

myst_heading_anchors = 3
numpydoc_show_class_members = False
autosummary_imported_members = True
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!spectile\b).+\..+")]  # what other libraries have is told apart by their names
# A checkout may lie in a folder whose path has a space; the files themselves have none.
suppress_warnings = ["sphinx_gallery.space_in_filename"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say types in words
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("spectile",),
    "backreferences_dir": "api/examples",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "ignore_pattern": "plot_gradient" if importlib.util.find_spec("torch") is None else "$^",
    "image_scrapers": ("matplotlib",),
    "abort_on_example_error": True,
}

#: Where the site has what links of the repository name.
PAGES = {
    "README.md": "/study.md",
    "CONTRIBUTING.md": "/contributing.md",
    "CHANGELOG.md": "/changelog.md",
    "SECURITY.md": "/security.md",
    "config/README.md": "/configuration.md",
    "docs/how": "/how/index.md",
    "docs/performance": "/performance/index.md",
    "docs/notes": "/notes/index.md",
}
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n(?::(end-before|start-after): (.+)\n)?```$", re.MULTILINE)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def relinked(text: str, folder: Path) -> str:
    """Return Markdown of a folder with links to pages of the site, and to other files as downloads."""

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        path = (folder / target).resolve()
        if "://" in target or not path.exists() or not path.is_relative_to(ROOT):
            return found[0]
        page = PAGES.get(path.relative_to(ROOT).as_posix())
        if path.parent == DOCS / "gallery":
            page = f"/examples/{path.stem}.rst"
        if page is None and path.is_dir():
            return label
        return f"[{label}]({page or '/' + os.path.relpath(path, DOCS)}{anchor})"

    return _LINK.sub(link, text)


def read_page(app, docname: str, source: list[str]) -> None:
    """Take in what a page includes from elsewhere in the repository, and draw its flow charts."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".md":
        return

    def included(found: re.Match[str]) -> str:
        name, side, mark = found.groups()
        file = (path.parent / name).resolve()
        app.env.note_dependency(str(file))
        before, _, after = file.read_text(encoding="utf-8").partition(mark or "\0")
        return relinked(after if side == "start-after" else before, file.parent)

    source[0] = flowcharts.drawn(_INCLUDE.sub(included, relinked(source[0], path.parent)))


def public(package: ModuleType) -> list[str]:
    """Return the public names of a package, each in the shortest way that it may be called."""
    return [
        f"spectile.{name}"
        if name in spectile.__all__ and getattr(spectile, name) is getattr(package, name)
        else f"{package.__name__}.{name}"
        for name in package.__all__
    ]


def home(name: str) -> str:
    """Return where an object is defined, by which two packages that share it are known."""
    package, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(package), last)
    return f"{value.__module__}.{value.__qualname__}"


#: Where each object of the reference is defined, and the name that its page has.
told: dict[str, str] = {}


def write_reference(app, config) -> None:
    """Write a page of the reference for each package, with its public names as they are today."""
    pages: dict[str, tuple[str, str, list[str]]] = {}
    for name in (*spectile._PACKAGES, *spectile._OPTIONAL):
        if name in spectile._OPTIONAL and importlib.util.find_spec(name) is None:
            pages[name] = (f"spectile.{name}", "The library was not installed where this site was built.", [])
            continue
        package = importlib.import_module(f"spectile.{name}")
        names = [each for each in public(package) if home(each) not in told]
        told.update((home(each), each) for each in names)
        pages[name] = (f"spectile.{name}", (package.__doc__ or "").strip(), names)
    rest = [f"spectile.{name}" for name in spectile.__all__ if home(f"spectile.{name}") not in told]
    pages["spectile"] = ("The machine and the choice of a kernel", "What every system has.", rest)
    for name, (title, about, names) in pages.items():
        lines = [title, "=" * len(title), "", about, ""]
        if names:
            lines += [".. autosummary::", "   :toctree: names", "", *(f"   {each}" for each in names), ""]
        text = "\n".join(lines)
        path = DOCS / f"api/{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def find_public(app, env, node, shown):
    """Lead a short name, or the place where an object is defined, to the page of its public name."""
    target, first, rest = node["reftarget"], *node["reftarget"].partition(".")[::2]
    for place, name in told.items():
        if name.endswith(f".{first}"):  # with a method behind it, maybe
            whole = f"{name}.{rest}".rstrip(".")
        elif place == target or place.endswith(f".{target}"):
            whole = name
        else:
            continue
        domain, page = env.domains.python_domain, node["refdoc"]
        return domain.resolve_xref(env, page, app.builder, node["reftype"], whole, node, shown)
    return None


def escape_bars(app, what, name, found, options, lines: list[str]) -> None:
    """Let |ψ⟩ be itself in docstrings, where reStructuredText sees the start of a substitution."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            code = line.split("``")
            lines[number] = "``".join(each.replace("|", r"\|") if at % 2 == 0 else each for at, each in enumerate(code))


def mark_short(app, doctree) -> None:
    """Mark cells of tables that hold a number with its unit, a name or the like."""
    for cell in doctree.findall(nodes.entry):
        if len(cell.astext()) <= 16:
            cell["classes"].append("short")


def setup(app) -> None:
    """Connect the functions above."""
    app.connect("config-inited", write_reference)
    app.connect("source-read", read_page)
    app.connect("doctree-read", mark_short)
    app.connect("missing-reference", find_public)
    app.connect("autodoc-process-docstring", escape_bars, priority=900)  # after numpydoc
