"""Ends of transactions, and questions about those without one."""
