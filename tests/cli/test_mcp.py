"""`roundoff mcp`, spoken to by the SDK's own client over stdio."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from roundoff.cli.mcp import MAX_LETTERS, cut_to_size
from tests.report.sample_runs import record_run

TOOLS = ["list_runs", "diagnose", "explain", "events", "compare", "replay", "what_if", "plan"]


def talk(runs: Path, calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    """Start the server, list its tools and call some; return the tools and the results."""
    from mcp import Client, StdioServerParameters, stdio_client

    async def session() -> tuple[list[Any], list[Any]]:
        server = StdioServerParameters(command=sys.executable, args=["-m", "roundoff", "mcp", "--runs", str(runs)])
        async with Client(stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(session)


@pytest.mark.slow
def test_an_agent_finds_out_what_is_wrong_and_nothing_is_written(tmp_path: Path):
    record_run(tmp_path / "runs" / "bad")
    record_run(tmp_path / "runs" / "good", is_broken=False)
    (tmp_path / "secret").mkdir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    tools, results = talk(
        tmp_path / "runs",
        [
            ("list_runs", {}),
            ("diagnose", {"run": "bad"}),
            ("explain", {"run": "bad", "finding": "overflow"}),
            ("events", {"run": "bad", "step": 1, "limit": 2}),
            ("compare", {"reference": "good", "candidate": "bad"}),
            ("what_if", {"run": "bad"}),
            ("plan", {"run": "bad"}),
            ("diagnose", {"run": "../secret"}),
            ("explain", {"run": "bad", "finding": "no-such"}),
            ("replay", {"run": "good"}),
            ("what_if", {"run": "bad", "builder": "model.py:build", "lr": "0.1x"}),
        ],
    )
    assert [tool.name for tool in tools] == TOOLS
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert [result.is_error for result in results] == [False] * 7 + [True] * 4
    listed, diagnosed, explained, events, compared, tried, plan = (result.structured_content for result in results[:7])
    assert {row["name"] for row in listed["runs"]} == {"bad", "good"}
    verdict = diagnosed["findings"][0]
    assert (verdict["rule"], verdict["step"], verdict["site"]) == ("overflow", 1, "body")
    assert explained["finding"]["id"] == verdict["id"]
    assert "sketch" not in events["events"][0]
    assert (len(events["events"]), events["next_offset"]) == (2, 2)
    assert compared["finding"]["site"] == "body"
    assert tried["tried"] == []
    assert plan["is_allowed"] is False
    texts = [result.content[0].text for result in results[7:]]
    for text, words in zip(
        texts, ["no run '../secret'", "no finding 'no-such'", "No step was saved", "--allow-run"], strict=True
    ):
        assert words in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_long_result_is_cut_and_says_by_how_much():
    cut = cut_to_size({"rows": [{"site": "x" * 100, "numbers": list(range(40))} for _ in range(1000)]})
    assert len(json.dumps(cut)) <= MAX_LETTERS + 200
    assert cut["left_off"]["rows"] == 1000 - len(cut["rows"])
