"""The endpoints ``/v1/files`` and ``/v1/batches``, compatible with OpenAI's Batch API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from services.edge.batches.job_service import JobService
from services.edge.batches.objects import batch_object, file_object, page_of
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys
from services.edge.http.connections import handler_of
from services.edge.http.request_body import json_body
from services.edge.requests.parse import parse_json

CHUNK_BYTES: Final = 262_144
WRITE_S: Final = 60.0
"""Maximum time for a client to receive one chunk of a file, in seconds."""

MAX_FIELD_BYTES: Final = 1_024
MAX_FIELDS: Final = 16
MAX_NAME_CHARS: Final = 255


class BatchEndpoint:
    def __init__(self, jobs: JobService, keys: ApiKeys) -> None:
        self._jobs = jobs
        self._keys = keys

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/files", self.upload),
            web.get("/v1/files", self.files, allow_head=False),
            web.get("/v1/files/{id}", self.file, allow_head=False),
            web.get("/v1/files/{id}/content", self.content, allow_head=False),
            web.delete("/v1/files/{id}", self.delete),
            web.post("/v1/batches", self.create),
            web.get("/v1/batches", self.batches, allow_head=False),
            web.get("/v1/batches/{id}", self.batch, allow_head=False),
            web.post("/v1/batches/{id}/cancel", self.cancel),
        ]

    async def upload(self, request: web.Request) -> web.Response:
        """Store a file that is uploaded as ``multipart/form-data``.

        The field ``purpose`` must be ``batch`` and come before the field ``file``.
        """
        tenant = self._keys.tenant_of(request.headers)
        if request.content_type != "multipart/form-data":
            raise ApiError(415, "Send the file as multipart/form-data.", code="not_a_form")
        connection = handler_of(request)
        connection.wait("body")
        purpose = None
        try:
            form = await request.multipart()
            for _ in range(MAX_FIELDS):
                part = await _next_part(form)
                if part is None:
                    break
                if not isinstance(part, BodyPartReader):
                    raise ApiError(400, "A form within the form is not supported.", code="invalid_body")
                if part.name == "purpose":
                    purpose = await _field(part)
                elif part.name == "file":
                    _check_purpose(purpose)
                    filename = (part.filename or "file.jsonl")[:MAX_NAME_CHARS]
                    connection.busy()
                    stored = await self._jobs.upload(tenant, filename, _chunks(request, form, part))
                    return _json(file_object(stored))
                await part.release()
        except ValueError:
            raise _unreadable_form() from None
        raise ApiError(400, "The form has no file.", code="invalid_value", param="file")

    async def files(self, request: web.Request) -> web.Response:
        """List the tenant's files, newest first.

        The query parameter ``purpose`` selects files. ``limit`` and ``after`` select a page of the list.
        """
        found = await self._jobs.files(self._keys.tenant_of(request.headers))
        purpose = request.query.get("purpose")
        shown = [file_object(file) for file in found if purpose in {None, file.purpose}]
        return _json(page_of(shown, request.query))

    async def file(self, request: web.Request) -> web.Response:
        """Return a file's metadata."""
        found = self._jobs.file(self._keys.tenant_of(request.headers), request.match_info["id"])
        return _json(file_object(found))

    async def content(self, request: web.Request) -> web.StreamResponse:
        """Return a file's content."""
        file = self._jobs.file(self._keys.tenant_of(request.headers), request.match_info["id"])
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = file.length
        with self._jobs.open(file) as source:
            await response.prepare(request)
            while chunk := await asyncio.to_thread(source.read, CHUNK_BYTES):
                try:
                    async with asyncio.timeout(WRITE_S):
                        await response.write(chunk)
                except TimeoutError:
                    response.force_close()
                    return response
        await response.write_eof()
        return response

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a file."""
        file_id = request.match_info["id"]
        await self._jobs.delete(self._keys.tenant_of(request.headers), file_id)
        return _json({"id": file_id, "object": "file", "deleted": True})

    async def create(self, request: web.Request) -> web.Response:
        """Submit a batch. Every line of its input file is a request in the lane ``batch``."""
        tenant = self._keys.tenant_of(request.headers)
        body = await json_body(request)
        async with handler_of(request).body_turn(len(body)):
            return _json(batch_object(await self._jobs.create(tenant, parse_json(body))))

    async def batches(self, request: web.Request) -> web.Response:
        """List the tenant's batches, newest first. The query parameters ``limit`` and ``after`` select a page."""
        found = await self._jobs.jobs(self._keys.tenant_of(request.headers))
        return _json(page_of([batch_object(job) for job in found], request.query))

    async def batch(self, request: web.Request) -> web.Response:
        """Return a batch and its progress."""
        tenant = self._keys.tenant_of(request.headers)
        return _json(batch_object(await self._jobs.job(tenant, request.match_info["id"])))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a batch. The results so far are kept."""
        tenant = self._keys.tenant_of(request.headers)
        return _json(batch_object(await self._jobs.cancel(tenant, request.match_info["id"])))


def _check_purpose(purpose: str | None) -> None:
    if purpose != "batch":
        raise ApiError(400, "purpose must be 'batch', and come before the file.", code="invalid_value", param="purpose")


async def _next_part(form: MultipartReader) -> MultipartReader | BodyPartReader | None:
    try:
        return await form.next()
    except (ValueError, HttpProcessingError, RuntimeError):  # their messages quote the form, which may hold prompts
        raise _unreadable_form() from None


def _unreadable_form() -> ApiError:
    return ApiError(400, "The form could not be read.", code="invalid_body")


async def _field(part: BodyPartReader) -> str:
    """Return the value of a short field. Of a value longer than ``MAX_FIELD_BYTES``, return only the beginning."""
    value = bytearray()
    while len(value) <= MAX_FIELD_BYTES and (chunk := await part.read_chunk(MAX_FIELD_BYTES)):
        value += chunk  # a chunk is what has arrived so far, perhaps less than the whole value
    return value.decode("utf-8", "replace")


async def _chunks(request: web.Request, form: MultipartReader, part: BodyPartReader) -> AsyncIterator[bytes]:
    connection = handler_of(request)
    connection.wait("body")
    while chunk := await part.read_chunk(CHUNK_BYTES):
        connection.busy()  # the time that the edge's disk takes does not count as the client's
        yield bytes(chunk)
        connection.wait("body")
    await _next_part(form)  # fails if the form, and so perhaps the file, is cut off
    connection.busy()


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
