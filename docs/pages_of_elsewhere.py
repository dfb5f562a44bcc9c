"""Adds pages to the site that are not in docs/: rules, public modules, examples, and those next to the README.

mkdocs calls the functions whose names begin with `on_`. `python -m mkdocs` (as in `make docs`) finds `docs.rule_pages`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from docs.api_pages import link_modules, page_of_module, public_modules
from docs.rule_pages import CODES, fill_in_questions, index_of_codes, page_of_code
from roundoff.cli.docs import llms_text, pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NEXT_TO_README = ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
ZOO = "tests/faults/README.md"
CHECKLIST = "my-training-is-wrong.md"
BENCHMARKS = "benchmarks.md"
API = "api.md"
FIGURES = re.compile(r"<!-- figures -->.*<!-- end of figures -->", re.S)
PERFORMANCE = re.compile(r"^## Performance\n(.*?)^## ", re.S | re.M)
CODE = re.compile(r"`([a-z-]+)`")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the scripts that examples link to."""
    files.append(File.generated(config, "rules/index.md", content=index_of_codes()))
    for name in CODES:
        files.append(File.generated(config, f"rules/{name}.md", content=page_of_code(name)))
    for module in public_modules():
        files.append(File.generated(config, f"api/{module}.md", content=page_of_module(module)))
    files.append(File.generated(config, "llms.txt", content=llms_text(pages(), link=lambda name: f"{name}.html")))
    examples = [path for path in sorted((ROOT / "examples").rglob("*")) if path.suffix in (".md", ".py", ".toml")]
    for path in [*(ROOT / name for name in (*NEXT_TO_README, ZOO)), *examples]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links between files of the repository lead to their pages, and codes to theirs; fill in generated parts."""
    uri = page.file.src_uri
    if uri in (CHECKLIST, f"zh/{CHECKLIST}"):
        up = "../" if uri.startswith("zh/") else ""
        markdown = CODE.sub(lambda word: _link_code(word, up), fill_in_questions(markdown))
    if uri == API:
        markdown = link_modules(markdown)
    if uri == BENCHMARKS:
        markdown = FIGURES.sub(lambda _: figures_of_readme(), markdown)
    if uri.startswith(("rules/", "api/")):
        return markdown
    place = Path(uri) if (ROOT / uri).exists() else Path("docs") / uri
    return LINK.sub(lambda link: f"]({link_in_site(link[1], place)}", markdown)


def link_in_site(link: str, page: Path) -> str:
    """Return where a link from a file of the repository leads in the site, whose root is docs/."""
    target = (ROOT / page.parent / link).resolve()
    if not target.is_relative_to(ROOT) or not target.exists():
        return link  # mkdocs reports it
    inside = target.relative_to(ROOT)
    inside = inside.relative_to("docs") if inside.is_relative_to("docs") else inside
    depth = len(page.parent.relative_to("docs").parts if page.is_relative_to("docs") else page.parent.parts)
    return "../" * depth + inside.as_posix()


def figures_of_readme() -> str:
    """Return the performance tables of the README."""
    found = PERFORMANCE.search((ROOT / "README.md").read_text())
    assert found is not None, "the README has lost its section 'Performance'"
    return f"## Figures\n{found[1]}"


def _link_code(word: re.Match[str], up: str) -> str:
    return f"[{word[0]}]({up}rules/{word[1]}.md)" if word[1] in CODES else word[0]
