"""What is read out of a memory's text or a query: the category, and the time it speaks of."""
