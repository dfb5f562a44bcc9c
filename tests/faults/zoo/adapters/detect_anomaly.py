"""Trains a script under torch's own anomaly detection: python detect_anomaly.py SCRIPT."""

from __future__ import annotations

import torch
from script import run_script

torch.autograd.set_detect_anomaly(True)
run_script()
