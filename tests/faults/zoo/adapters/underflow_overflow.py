"""Trains a script with transformers' DebugUnderflowOverflow on its models: python underflow_overflow.py SCRIPT."""

from __future__ import annotations

from typing import Any

from script import run_script
from top_level import when_first_called
from transformers.debug_utils import DebugUnderflowOverflow

kept: list[Any] = []
when_first_called(lambda model: kept.append(DebugUnderflowOverflow(model)))
run_script()
