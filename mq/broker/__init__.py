"""The broker: topics, producers, groups, offsets, deliveries. No gRPC, no Raft: entries are
proposed through `contracts.Consensus` and applied by `machine`.
"""
