"""`roundoff docs`: the pages of the documentation, which are installed with the package."""

from __future__ import annotations

import difflib
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
def docs_command(topic: str | None) -> None:
    """Print a page of the documentation, as Markdown; without a TOPIC, list the pages."""
    found = pages()
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


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
