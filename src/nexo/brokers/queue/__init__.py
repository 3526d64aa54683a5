"""The queue broker's rules: durable jobs with priorities, leases, retries and dead letters.

`ledger` holds the durable state, `dispatch` the rest: waiting jobs and leases. `engine`
joins the two; services call only it.
"""
