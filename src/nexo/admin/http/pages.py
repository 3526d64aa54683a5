"""The dashboard's files, read once.

Reading them from the disk takes several turns of a thread for each, which a busy machine gives
late: a page of twenty modules came after half a minute.
"""

from __future__ import annotations

import mimetypes
from hashlib import blake2b
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from nexo.admin.http.replies import View


def pages(folder: Path) -> View:
    """Answers for the files below ``folder``, ``index.html`` for none; browsers ask for changes."""
    kept = {
        file.relative_to(folder).as_posix(): (file.read_bytes(), mimetypes.guess_type(file.name)[0])
        for file in folder.rglob("*")
        if file.is_file()
    }
    kept[""] = kept["index.html"]

    async def read(request: Request) -> Response:
        found = kept.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404)
        content, kind = found
        tag = f'"{blake2b(content, digest_size=8).hexdigest()}"'
        same = request.headers.get("if-none-match") == tag
        headers = {"etag": tag, "cache-control": "no-cache"}
        if same:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return read
