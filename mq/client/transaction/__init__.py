"""Transaction producers."""
