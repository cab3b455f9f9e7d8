"""``python -m docs.metrics > docs/metrics.md``: the page of the names of all metrics."""

from __future__ import annotations

import sys

from trainers.report.metrics import GROUPS

HEAD = """# Metrics

Every line of `metrics.jsonl` is a JSON object with `iteration` (0 is before training) and values under the
names below; other names do not occur. `<…>` stands for any further text. A value that is not finite is
`null`. Read the file with any JSON-lines reader, or with `trainers.report.metrics.read_metrics`.

This page is made by `python -m docs.metrics > docs/metrics.md`. TensorBoard, Weights & Biases and
trackio show the same names: [watching a run](watching.md).
"""


def page() -> str:
    """Returns the page: a table for each group of metrics."""
    text = HEAD
    for group, body in GROUPS.items():
        text += f"\n## {body['title']}\n\n| name | meaning |\n|---|---|\n"
        text += "".join(f"| `{group}/{name}` | {meaning} |\n" for name, meaning in body["metrics"].items())
    return text


if __name__ == "__main__":
    sys.stdout.write(page())
