"""Shares as a page writes them."""

from __future__ import annotations


def percent(share: float) -> str:
    """Write a share; nothing for 0, so that the eye finds the others.

    >>> percent(0.0), percent(0.5), percent(1.0), percent(1e-5)
    ('', '50 %', '100 %', '<0.1 %')
    """
    if share <= 0:
        return ""
    if share >= 0.995:
        return "100 %"
    return f"{100 * share:.2g} %" if share >= 0.001 else "<0.1 %"
