"""`roundoff serve`: a folder of runs in a browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from roundoff.errors import ServeError
from roundoff.words import plural

PORT = 7007
NEEDED = ("starlette", "uvicorn")


@click.command("serve", epilog="Example: roundoff serve runs")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for every network.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option(
    "--token",
    envvar="ROUNDOFF_TOKEN",
    help="Ask for this, 8 characters or more; made and printed where others can connect.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def serve_command(folder: Path, host: str, port: int, token: str | None, as_json: bool) -> None:
    """Show the runs in DIR (by default ./runs) in a browser until Ctrl-C: a list, their pages, two side by side.

    A run in progress updates by itself. Only this machine can connect, unless --host says otherwise; then a token is
    asked for. Nothing is written.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ServeError.explain(
                f"{name} is not installed.", why="roundoff serve needs it.", fix="pip install 'roundoff[serve]'"
            )
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ServeError.explain(f"'{folder}' {what}.", fix="name the folder that holds your runs.")
    from roundoff.runs import to_json
    from roundoff.serve.app import App
    from roundoff.serve.guard import AccessPolicy, host_names
    from roundoff.serve.runs_folder import RunsFolder
    from roundoff.serve.server import address_of, choose_token, is_loopback, listen, serve_until_stopped

    with listen(host, port) as listening:
        is_local, number = is_loopback(listening), listening.getsockname()[1]
        asked = choose_token(token, is_needed=not is_local)
        names = host_names(host, is_loopback=is_local)
        door = AccessPolicy(names=names, is_loopback=is_local, token=asked, cookie=f"roundoff-token-{number}")
        site = App(RunsFolder(folder))
        num_runs = site.prepare()
        address = address_of(listening) + (f"?token={asked}" if asked else "")
        if as_json:
            told = {"address": address, "port": number, "token": asked, "folder": str(folder), "num_runs": num_runs}
            click.echo(to_json(told))
        else:
            click.echo(f"{address}   {plural(num_runs, 'run')} in {folder}; Ctrl-C ends it")
        serve_until_stopped(site.app(door), listening)
        site.pages.close()
