"""One log on several nodes: which node leads, what is committed, how entries get to the others.

`Core` decides, by `Election` and `Replication`, and returns what there is to do. `Replica` does it,
without sockets, threads and clocks, so that a simulation can run many of them in virtual time;
`Node` puts a replica on an asyncio loop. PySyncObj elects: `engine` is the only module that knows
it.
"""
