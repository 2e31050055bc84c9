"""Hindsight: long-term memory for AI agents over MCP.

A recall's products of matrices take a tenth of a millisecond; waking threads of the linear algebra library for them
costs many times as much, so it gets one. That must be said before numpy is loaded.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
