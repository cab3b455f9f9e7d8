"""What a run found: tables, plots, and the self-contained ``report.html``."""

from trainers.report.stats import (
    EvalResult,
    StratumResult,
    before_after_latex,
    before_after_markdown,
    before_after_table,
    evaluate_summary,
    wilson,
)
from trainers.report.write import write_report

__all__ = [
    "EvalResult",
    "StratumResult",
    "before_after_latex",
    "before_after_markdown",
    "before_after_table",
    "evaluate_summary",
    "wilson",
    "write_report",
]
