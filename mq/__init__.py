"""A Raft-replicated message broker: one CommitLog for all topics, light queues on top, gRPC in
front.
"""
