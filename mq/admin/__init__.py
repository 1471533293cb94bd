"""The operator's view of a node, and the changes it allows. `mq.rpc.admin` is its face on the
wire.
"""
