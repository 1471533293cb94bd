"""Real processes on real files."""
