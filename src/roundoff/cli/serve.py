"""`roundoff serve`: the runs of a directory in the browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, json_option
from roundoff.cli.terminal import echo
from roundoff.errors import ServeError
from roundoff.words import plural

PORT = 7007
NEEDED = ("starlette", "uvicorn")


@click.command("serve", epilog="Example: roundoff serve runs")
@click.argument("folder", metavar="[DIR]", type=PATH, default=Path("runs"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on (0.0.0.0: all networks).")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on (0: any free port).",
)
@click.option(
    "--token",
    envvar="ROUNDOFF_TOKEN",
    help="Access token of at least 8 characters.  [default: generated if other machines can connect]",
)
@json_option("Print the address as one line of JSON.")
def serve_command(folder: Path, host: str, port: int, token: str | None, as_json: bool) -> None:
    """Show the runs in DIR (default: ./runs) in the browser until Ctrl-C: a list, their reports, comparisons of two.

    Reports of running trainings update automatically. Only this machine can connect unless --host says otherwise, which
    requires a token. Nothing is written.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ServeError.explain(
                f"{name} is not installed.", why="roundoff serve needs it.", fix="pip install 'roundoff[serve]'"
            )
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ServeError.explain(f"'{folder}' {what}.", fix="name the folder that holds your runs.")
    from roundoff.runs import JsonValue
    from roundoff.serve.app import App
    from roundoff.serve.guard import AccessPolicy, host_names
    from roundoff.serve.runs_folder import RunsFolder
    from roundoff.serve.server import address_of, choose_token, is_loopback, listen, serve_until_stopped

    with listen(host, port) as listening:
        is_local, number = is_loopback(listening), listening.getsockname()[1]
        required_token = choose_token(token, is_needed=not is_local)
        names = host_names(host, is_loopback=is_local)
        policy = AccessPolicy(
            names=names, is_loopback=is_local, token=required_token, cookie=f"roundoff-token-{number}"
        )
        app = App(RunsFolder(folder))
        num_runs = app.prepare()
        address = address_of(listening) + (f"?token={required_token}" if required_token else "")
        if as_json:
            facts: dict[str, JsonValue] = {
                "address": address,
                "port": number,
                "token": required_token,
                "folder": str(folder),
                "num_runs": num_runs,
            }
            echo_json("serve", facts)
        else:
            echo(f"{address}   {plural(num_runs, 'run')} in {folder}; Ctrl-C ends it")
        serve_until_stopped(app.asgi(policy), listening)
        app.pages.close()
