"""The dashboard, the HTTP API and the metrics of a running server.

Runs in a process of its own and talks to the brokers as an ordinary client. `app` puts
everything together; `routes` is the table that routing and the OpenAPI document come from;
`api` has the endpoints; `sampler` watches the brokers.
"""
