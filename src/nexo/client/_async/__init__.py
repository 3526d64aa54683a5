"""The async client. ``tools/unasync.py`` makes the sync one from it.

A broker's client is a class over a `Link`: ``Store(link)``, ``PubSub(link)``,
``Queue(link, name, type_)``, ``Stream(link, name, type_)``, ``Transaction(link)``. It uses
`runtime` instead of asyncio, so that its generated twin runs on threads, and takes
``link.duplex()`` for pushes and consumers, where one connection must see everything.
"""
