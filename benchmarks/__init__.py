"""Speed, measured side by side with the servers a Python user would otherwise choose.

``python -m benchmarks`` runs the rows of every module that has ``rows()``. A row
names the work and its contenders, ours first; a contender prepares itself on a
`Bench` and returns a function that measures one round:

    def nexo_get(bench: Bench) -> Measure:
        client = bench.enter(nexo.connect_sync(bench.nexo().url))
        count = bench.scaled(20_000)
        return lambda: rate(count, lambda: [client.store.get("key") for _ in range(count)])

    def rows() -> list[Row]:
        return [Row("GET, one client in a loop", "op/s", ours=Contender("nexo", nexo_get),
                    peers=[Contender("redis-py", redis_get)], bar=1.4)]
"""
