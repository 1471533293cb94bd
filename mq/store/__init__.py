"""Files and bytes: one CommitLog for all topics, light ConsumeQueues and a key index derived from
it.

Knows no network, no Raft, no consumer groups, and reads no clock: `now_ms` comes in as an argument.
"""
