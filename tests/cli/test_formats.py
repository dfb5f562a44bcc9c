import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["formats", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_lists_every_format():
    result = invoke()
    assert result.exit_code == 0
    assert result.output == (
        "format           bits       largest  smallest normal  smallest subnormal        eps  overflow\n"
        "fp64               64  1.79769e+308       2.225e-308          4.941e-324   2.22e-16  infinity\n"
        "fp32               32   3.40282e+38        1.175e-38           1.401e-45  1.192e-07  infinity\n"
        "tf32               19   3.40116e+38        1.175e-38           1.148e-41  0.0009766  infinity\n"
        "bf16               16   3.38953e+38        1.175e-38           9.184e-41   0.007812  infinity\n"
        "fp16               16         65504        6.104e-05            5.96e-08  0.0009766  infinity\n"
        "e4m3                8           448          0.01562            0.001953      0.125  saturates\n"
        "e5m2                8         57344        6.104e-05           1.526e-05       0.25  infinity\n"
        "e4m3fnuz            8           240         0.007812           0.0009766      0.125  NaN\n"
        "e5m2fnuz            8         57344        3.052e-05           7.629e-06       0.25  NaN\n"
        "e2m3                6           7.5                1               0.125      0.125  saturates\n"
        "e3m2                6            28             0.25              0.0625       0.25  saturates\n"
        "e2m1                4             6                1                 0.5        0.5  saturates\n"
        "mxfp8            8.25   7.62233e+40        9.184e-41           1.148e-41      0.125  saturates\n"
        "mxfp8-e5m2       8.25   9.75658e+42        3.587e-43           8.968e-44       0.25  saturates\n"
        "mxfp6-e2m3       6.25   1.27606e+39        5.877e-39           7.347e-40      0.125  saturates\n"
        "mxfp6-e3m2       6.25   4.76395e+39        1.469e-39           3.673e-40       0.25  saturates\n"
        "mxfp4            4.25   1.02085e+39        5.877e-39           2.939e-39        0.5  saturates\n"
        "mxint8           8.25   3.37624e+38        5.877e-39           9.184e-41    0.01562  saturates\n"
        "fp8-row             8   1.70141e+38        3.488e-17            4.36e-18      0.125  saturates\n"
        "fp8-row-e5m2        8   1.70141e+38        1.064e-21           2.661e-22       0.25  saturates\n"
        "fp8-1x128      8.0625   1.70141e+38        5.551e-17           6.939e-18      0.125  saturates\n"
        "fp8-128x128   8.00049   1.70141e+38        5.551e-17           6.939e-18      0.125  saturates\n"
        "int8-row            8   1.70141e+38        5.039e-13           7.874e-15    0.01562  saturates\n"
        "nvfp4             4.5   1.70141e+38        5.813e-36           2.906e-36        0.5  saturates\n"
        "nvfp4-16x16   4.03125   1.70141e+38        5.813e-36           2.906e-36        0.5  saturates\n"
        "int4-group32        5   1.70141e+38        5.714e-13           1.429e-13       0.25  saturates\n"
        "q1.7                8      0.992188         0.007812            0.007812   0.007812  saturates\n"
        "q1.15              16      0.999969        3.052e-05           3.052e-05  3.052e-05  saturates\n"
    )


def test_shows_what_formats_make_of_a_number():
    names = ["fp32", "tf32", "fp16", "e4m3", "e5m2fnuz", "mxfp8"]
    result = invoke("70000", *(part for name in names for part in ("--format", name)))
    assert result.exit_code == 0
    assert result.output == (
        "format    value  relative error  what happens\n"
        "fp32      70000               -  exact\n"
        "tf32      70016         0.00023  rounded\n"
        "fp16        inf             inf  overflows to infinity\n"
        "e4m3        448            0.99  saturated\n"
        "e5m2fnuz    nan             inf  overflows to NaN\n"
        "mxfp8     73728           0.053  rounded\n"
    )


def test_says_what_becomes_of_small_numbers():
    result = invoke("3e-5", "--format", "fp16", "--format", "e4m3")
    assert result.output == (
        "format           value  relative error  what happens\n"
        "fp16    2.99811363e-05         0.00063  rounded, as a subnormal with fewer bits\n"
        "e4m3                 0               1  underflows to zero\n"
    )


@pytest.mark.parametrize("number", ["-1.5", "-1e-9", "-inf", "nan", "-nan", "inf", "-0.0", "-.5"])
def test_takes_any_number_also_a_negative_one(number):
    result = invoke(number, "--format", "fp32")
    assert result.exit_code == 0
    assert result.output.splitlines()[1].startswith("fp32")


@pytest.mark.parametrize("arguments", [(), ("-70000",), ("1.2345678901e-40",), ("0.1",)])
def test_fits_a_hundred_columns(arguments):
    assert max(map(len, invoke(*arguments).output.splitlines())) <= 100


def test_gives_the_formats_as_json():
    formats = json.loads(invoke("--json").output)
    assert len(formats) == 28
    assert formats[5] == {
        "format": "e4m3",
        "num_bits": 8,
        "largest": 448.0,
        "smallest_normal": 0.015625,
        "smallest_subnormal": 0.001953125,
        "eps": 0.125,
        "overflow": "saturate",
    }


def test_gives_effects_as_json_that_any_reader_takes():
    output = invoke("70000", "--json", "--format", "fp16", "--format", "e5m12").output
    assert "NaN" not in output
    assert "Infinity" not in output
    assert json.loads(output) == [
        {"format": "fp16", "value": "inf", "relative_error": "inf", "outcome": "overflow to infinity"},
        {"format": "e5m12", "value": "inf", "relative_error": "inf", "outcome": "overflow to infinity"},
    ]


def test_a_word_that_is_no_number_is_an_error():
    result = invoke("e4m3")
    assert result.exit_code == 2
    assert result.output == (
        "UsageError: 'e4m3' is not a number.\n"
        "  why: `roundoff formats NUMBER` shows how each format represents it.\n"
        "  fix: write it like 70000, -1.5, 1e-9, inf or nan; for one format: roundoff formats --format e4m3\n"
    )


def test_an_unknown_format_is_an_error():
    result = invoke("1", "--format", "e4m4x")
    assert result.exit_code == 2
    assert "No format 'e4m4x'." in result.output


def test_draws_a_table_on_a_terminal(monkeypatch):
    from roundoff.cli import formats

    monkeypatch.setattr(formats, "_is_terminal", lambda: True)
    lines = invoke().output.splitlines()
    assert any("───" in line for line in lines)
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)


def test_its_help_costs_no_torch():
    code = (
        "import sys, roundoff.cli.formats as f\n"
        "try: f.formats_command(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.splitlines()[-1] == "False"
    assert "Example: roundoff formats 70000 --format fp16 --format e5m12" in answer.stdout
