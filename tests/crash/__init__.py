"""A campaign of kills: a server is killed at a chosen moment, and the next one must have all that it acknowledged."""
