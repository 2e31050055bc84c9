"""Hindsight: long-term memory for AI agents over MCP."""
