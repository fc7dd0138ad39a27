"""Stage *log*: writes to MLflow what a run has already left on disk, whatever it ended with.

:func:`log_summary` does it in this process.  :class:`LogWorker` does it in a process of its own
that loads MLflow while the earlier stages run, so that they need not wait for it.  Neither can make
a build fail, unless it is asked to: what MLflow raises comes back as ``LogResult.warning``.

Importing this package imports no MLflow.
"""

from stateful_pipeline.stages.log.log import log_summary
from stateful_pipeline.stages.log.result import LogResult
from stateful_pipeline.stages.log.worker import LogWorker

__all__ = ["LogResult", "LogWorker", "log_summary"]
