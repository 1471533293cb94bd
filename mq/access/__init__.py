"""Access as values: keys, passwords, policies, and what broker sets have of users, without a clock,
a log or a socket.
"""
