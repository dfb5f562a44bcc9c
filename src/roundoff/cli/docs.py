"""`roundoff docs`: the pages of the documentation, which are installed with the package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from roundoff.cli.terminal import echo
from roundoff.errors import UsageError

_PACKAGE = Path(__file__).parents[1]


def pages() -> dict[str, Path]:
    """Return the pages by topic, `zh/TOPIC` in Chinese; an editable installation has them where they are written."""
    folders = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")
    found = next((folder for folder in folders if (folder / "index.md").is_file()), folders[0])
    return {path.relative_to(found).with_suffix("").as_posix(): path for path in sorted(found.rglob("*.md"))}


@click.command("docs", epilog="Example: roundoff docs watch")
@click.argument("topic", required=False)
@click.option("--llms", is_flag=True, help="Print llms.txt: all pages with one sentence each, for language models.")
def docs_command(topic: str | None, llms: bool) -> None:
    """Print a page of the documentation, as Markdown; without a TOPIC, list the pages."""
    found = pages()
    if llms:
        echo(llms_text(found, link=lambda name: f"roundoff docs {name}").rstrip())
        return
    if topic is None:
        width = max(map(len, found), default=0)
        echo("\n".join(f"{name:{width}}  {_title(path)}" for name, path in found.items()))
        return
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        raise UsageError.explain(
            f"There is no page '{topic}'.",
            fix=f"did you mean '{close[0]}'?" if close else "`roundoff docs` lists the pages.",
        )
    echo(found[name].read_text(encoding="utf-8").rstrip())


def llms_text(found: Mapping[str, Path], *, link: Callable[[str], str]) -> str:
    """Return llms.txt: what this is, and each English page with its first sentence; `link` says how to get one."""
    english = {name: path for name, path in found.items() if "/" not in name}
    lines = [f"- [{_title(path)}]({link(name)}): {_first_sentence(path)}" for name, path in english.items()]
    return "\n".join(["# roundoff", "", f"> {_SUMMARY}", "", "## Pages", "", *lines, ""])


_SUMMARY = (
    "Trains PyTorch models at any numeric precision, and says why when it goes wrong: `roundoff run --json train.py`. "
    "For agents: `roundoff skill`, `roundoff mcp`, `roundoff schema COMMAND`."
)


def _first_sentence(page: Path) -> str:
    """Return the first sentence of a page's first paragraph, without markup."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    text = next((part for part in paragraphs[1:] if _is_prose(part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0]


def _is_prose(paragraph: str) -> bool:
    return (paragraph[:1].isalpha() or paragraph[:1] in "`*[") and not paragraph.startswith("English | ")


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
