from dataclasses import replace
from pathlib import Path

from roundoff.experiments.bisect.bisect_answer import BisectAnswer, bisect_text
from roundoff.words import join_words

ANSWER = BisectAnswer(
    subject="train.py --epochs 1",
    good="fp32",
    bad="half",
    fmt="fp32",
    judge="nonfinite: a loss that is not finite is bad",
    num_sites=26,
    is_measured=True,
    found=("blocks.1.attn:softmax",),
    modules=("blocks.1.attn",),
    with_them="finite, loss 1.32",
    without={"blocks.1.attn:softmax": "loss nan at step 3"},
    as_it_is="loss nan at step 3",
    num_runs=3,
    num_other_runs=2,
    seconds=12.2,
    folder=Path("runs/bisect-1"),
    recipe_file=Path("runs/bisect-1/recipe.toml"),
    next_commands=("roundoff train --recipe runs/bisect-1/recipe.toml",),
)


def test_the_verdict_comes_first_then_proof_numbers_recipe_and_what_to_do():
    assert bisect_text(ANSWER) == (
        "blocks.1.attn:softmax must stay in fp32: good with it, bad without it.\n"
        "  with it    finite, loss 1.32\n"
        "  without    blocks.1.attn:softmax: loss nan at step 3\n"
        "  inside     blocks.1.attn\n"
        "  judged by  nonfinite: a loss that is not finite is bad\n"
        "  searched   26 sites of `train.py --epochs 1`, the most suspicious in one measured step first\n"
        "  took       3 runs of the search and 2 to compare with; 12 s\n"
        "  recipe     runs/bisect-1/recipe.toml\n"
        "  folder     runs/bisect-1\n"
        "  next       roundoff train --recipe runs/bisect-1/recipe.toml"
    )


def first_line(**changes: object) -> str:
    lines = bisect_text(replace(ANSWER, **changes)).splitlines()
    verdict = [lines[0], *(line[1:] for line in lines[1 : lines.index(next(filter(is_fact, lines)))])]
    return "".join(verdict)


def is_fact(line: str) -> bool:
    return line.startswith(("  with", "  unchanged", "  narrow"))


def test_every_kind_of_answer_has_its_sentence():
    two = ("embed", "head")
    assert first_line(found=()) == "Nothing to find: half is as good as fp32 here."
    assert first_line(found=two) == ("embed and head must stay in fp32: good with them, bad without any one of them.")
    assert first_line(is_mirror=True) == "blocks.1.attn:softmax makes the training bad alone."
    assert first_line(is_mirror=True, found=two) == (
        "embed and head make the training bad together, but not if any one of them is left out."
    )
    assert first_line(is_substituted=True, good="fp64") == (
        "blocks.1.attn:softmax is the cause: good with it computed by fp64, bad unchanged."
    )
    assert first_line(is_minimal=False, stopped_by="--max-runs") == (
        "blocks.1.attn:softmax must stay in fp32: good with it, bad without it; --max-runs ended the search inside."
    )
    assert first_line(is_minimal=False, stopped_by="--max-runs", found=two, without={}) == (
        "embed and head: sufficient, but perhaps not all are needed; --max-runs ended the search."
    )
    still_above = {"still_above": "loss 7.8, at most 1.2 is good"}
    assert first_line(**still_above) == (
        "blocks.1.attn:softmax must stay in fp32: finite with it, but its loss is still above that of fp32."
    )
    assert first_line(**still_above, found=two, is_minimal=False, stopped_by="--max-runs") == (
        "embed and head must stay in fp32: finite with them, but the loss is still above that of fp32; "
        "--max-runs ended the search for more."
    )
    assert first_line(verdict="Fixed random numbers make it good.") == "Fixed random numbers make it good."


def test_lines_fit_into_100_columns_but_for_what_is_copied():
    sites = tuple(f"model.decoder.layers.{number}.attention" for number in range(12))
    command = f"roundoff train --data {'x' * 100}"
    stages = ("configuration and data: not compared, because there is no good run to compare with (--against) " * 3,)
    text = bisect_text(replace(ANSWER, found=sites, modules=sites, stages=stages, next_commands=(command,)))
    assert [line for line in text.splitlines() if len(line) > 100] == [f"  next       {command}"]


def test_a_long_list_is_cut():
    assert join_words(tuple("abcdefghijkl"), at_most=8) == "a, b, c, d, e, f, g, h and 4 more"
    assert join_words(("a",), at_most=8) == "a"


def test_the_answer_goes_to_json_with_its_paths_as_texts():
    data = ANSWER.to_object()
    assert data["found"] == ("blocks.1.attn:softmax",)
    assert data["recipe_file"] == "runs/bisect-1/recipe.toml"
