"""How every comparison shows itself: its verdict as text, and as HTML in a notebook."""

from __future__ import annotations

from roundoff.lazy_names import lazy_method


class ShownComparison:
    """The base of comparisons: `print` shows what `roundoff compare` prints, a notebook shows it as HTML."""

    __slots__ = ()

    __str__ = lazy_method("roundoff.report.notebook", "comparison_text")
    _repr_html_ = lazy_method("roundoff.report.notebook", "comparison_html")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0].strip()}>"
