"""The server: `paged-edu serve`, OpenAI's HTTP interface over `AsyncEngine`.

A request comes through `gate` (size, key, request id), is checked by `schemas` and `params`, queued by `service`, and answered by `replies`, whole or
as `sse`. `run` starts it all. It needs the extra: ``pip install 'paged-edu[serve]'``.
"""
