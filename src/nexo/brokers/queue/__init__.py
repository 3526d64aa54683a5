"""The queue broker's rules: durable jobs with priorities, leases, retries and dead letters.

`ledger` holds what must survive a crash, `dispatch` what does not: who waits in which
line and who works on what. `engine` joins the two and is what a service talks to.
"""
