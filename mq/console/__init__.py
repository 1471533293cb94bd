"""The web console: pages about a cluster, for people.

A client of the brokers like any other, in a process of its own. It imports `mq.client` and leaves,
and acts as the user who signed in, by that user's key: brokers alone decide what is allowed. The
addresses of the brokers are fixed when it starts.

A screen is a module of `screens` with its views and routes, and templates of its name; the table in
`screens/__init__.py` lists all of them. `app` puts them behind the `gate`, which every request
passes; `sampler` keeps two hours of rates and lags; `serving` runs it.
"""
