"""Members of groups, what they have in hand, and reading by hand."""
