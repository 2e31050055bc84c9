"""Recall's parts. All are pure: they know texts, numbers and vectors, and neither a ledger nor a bank."""
