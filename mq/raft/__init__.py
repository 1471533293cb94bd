"""One log on several nodes: who leads, what is committed, and how entries get to the others.

PySyncObj elects and counts; everything that touches a disk or a wire is ours. Nothing outside of
this package imports PySyncObj. `Replica` is the whole of it without sockets, threads and clocks, so
that a simulation can run many of them in virtual time; `Node` puts it on an asyncio loop.
"""
