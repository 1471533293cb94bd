"""Administration of topics, groups, messages and broker sets."""
