"""Filter expressions over a memory's metadata: GoodMem's language, told to users in docs/filters.md.

An expression is read once (lexer.py, parser.py) into closures (evaluation.py), then asked of every record. Reading
raises InvalidFilter and nothing else; asking never raises, for NULL stands for all that can go wrong with a record.
"""

from hindsight.filters.evaluation import Predicate
from hindsight.filters.parser import parse_filter

__all__ = ["Predicate", "parse_filter"]
