"""FastAPI, Starlette and other ASGI applications (SPEC M4): a client for each application, and
pub/sub for browsers that ends with them.
"""

from __future__ import annotations

from nexo.integrations.asgi.bridge import EventStream, bridge
from nexo.integrations.asgi.lifespan import Nexo

__all__ = ["EventStream", "Nexo", "bridge"]
