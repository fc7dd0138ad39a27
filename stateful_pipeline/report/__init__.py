"""What people look at after a run: one self-contained HTML page, and the charts inside it.

The page and the charts are drawn from the run's *summary*, a plain dict that could be JSON, and
from nothing else: no file is read, no heavy library is imported.
"""

from stateful_pipeline.report.charts import error_svg, latency_svg
from stateful_pipeline.report.page import render_report, write_report
from stateful_pipeline.report.verdict import plain_json, run_verdict, show_sizes, target_verdict

__all__ = [
    "error_svg",
    "latency_svg",
    "plain_json",
    "render_report",
    "run_verdict",
    "show_sizes",
    "target_verdict",
    "write_report",
]
