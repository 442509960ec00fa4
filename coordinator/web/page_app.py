"""The page of a cluster: static files, and data for them as JSON (`/api/...`), from calls of the client service.

Decides who may ask: with a token set, every request for data shows it as a bearer token; without one only requests
whose Host is an address or `localhost` are answered, and never those that another site's script sends, so that no page
elsewhere on the web reaches a cluster through a browser. What changes something is a POST with `X-Snapline: page`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from snapline.coordinator.rpc.coordinator_stub import CoordinatorAnswer, CoordinatorStub
from snapline.coordinator.web.flink_rest import FlinkRest, Refusal
from snapline.coordinator.web.large_answers import LargeAnswers
from snapline.coordinator.web.recent_figures import PERIOD_SECONDS, UNSEEN_PERIOD_SECONDS, RecentFigures
from snapline.coordinator.web.request_bodies import BodyRefused, number_in, read_json, text_in, whole_number
from snapline.dataflow.config import is_secret
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.protos import client_pb2 as pb
from snapline.runtime.cores.credentials import CredentialRefused, Role, is_credential
from snapline.runtime.logs import REDACTED
from snapline.runtime.rpc.exposure import host_name, names_this_machine
from snapline.runtime.rpc.security import Security

STATIC = Path(__file__).parent / "static"
LONG_CALL_SECONDS = 600.0
ENDED_JOBS_SHOWN = 200
LOG_LINES = 200
"""Last lines of each TaskManager, unless the page asks for more."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

Answer = Message | dict[str, Any] | list[Any]
Handler = Callable[[Request], Awaitable[Answer]]


class _WithHeaders:
    """Puts PAGE_HEADERS into every answer, whoever makes it."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PAGE_HEADERS)
            await send(message)

        await self._application(scope, receive, send_on)


class PageApp:
    """The application of one server."""

    def __init__(
        self,
        coordinator: CoordinatorStub,
        security: Security,
        settings: Mapping[str, str],
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        """`security`: what requests have to show, if anything. `settings`: those of this process. `hosts`: names under
        which the page may be asked for, besides addresses and `localhost`."""
        self._coordinator = coordinator
        self._security = security
        self._hosts = hosts
        self._large = LargeAnswers()
        self._figures = RecentFigures()
        self._looked = asyncio.Event()
        read = [
            ("/api/overview", self._overview),
            ("/api/jobs", self._jobs),
            ("/api/jobs/{job_id}", self._job),
            ("/api/jobs/{job_id}/checkpoints", self._checkpoints),
            ("/api/jobs/{job_id}/checkpoints/{checkpoint_id}", self._checkpoint),
            ("/api/jobs/{job_id}/checkpoints/{checkpoint_id}/state", self._snapshot_state),
            ("/api/jobs/{job_id}/figures", self._recent),
            ("/api/jobs/{job_id}/why", self._why),
            ("/api/jobs/{job_id}/vertices/{vertex_id}/keys", self._leading_keys),
            ("/api/jobs/{job_id}/stacks", self._stacks),
            ("/api/jobs/{job_id}/logs", self._logs),
            ("/api/configuration", self._configuration),
            ("/api/taskmanagers", self._task_managers),
            ("/api/taskmanagers/{resource_id}/log", self._logs),
        ]
        change = [
            ("/api/jobs/{job_id}/cancel", self._cancel),
            ("/api/jobs/{job_id}/savepoint", self._savepoint),
            ("/api/jobs/{job_id}/stop", self._stop),
            ("/api/jobs/{job_id}/rescale", self._rescale),
        ]
        routes = [Route(path, self._guarded(handler)) for path, handler in read]
        routes += [Route(path, self._guarded(handler, changes=True), methods=["POST"]) for path, handler in change]
        refusal = functools.partial(self._refusal, changes=False)
        routes += FlinkRest(coordinator, settings, refusal, self._large).routes
        self.application = Starlette(
            routes=[*routes, Route("/", self._index), Mount("/static", StaticFiles(directory=STATIC))],
            middleware=[Middleware(_WithHeaders)],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look())
        yield
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        await self._coordinator.close()

    # --- who may ask --------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler, *, changes: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            refused = self._refusal(request, changes=changes)
            if refused is not None:
                status, line = refused
                return JSONResponse({"error": line}, status)
            self._looked.set()
            try:
                answer = await handler(request)
            except CoordinatorAnswer as error:
                return JSONResponse({"error": str(error)}, error.status)
            except BodyRefused as error:
                return JSONResponse({"error": str(error)}, error.status)
            except (ValueError, KeyError) as error:
                return JSONResponse({"error": f"the request makes no sense: {error}"}, 400)
            return JSONResponse(await self._as_dict(answer) if isinstance(answer, Message) else answer)

        return respond

    async def _as_dict(self, answer: Message) -> dict[str, Any]:
        """Return what of it becomes JSON."""
        return await self._large.make(answer, lambda: message_as_dict(answer))

    def _refusal(self, request: Request, *, changes: bool) -> Refusal | None:
        """Why the request is not answered; None: it is."""
        host = request.headers.get("host", "")
        origin = request.headers.get("origin", "")
        if origin and origin.partition("://")[2] != host:
            return 403, f"a script of {origin} may not ask here"
        if (
            request.headers.get("sec-fetch-site") == "cross-site"
            and request.headers.get("sec-fetch-dest") != "document"
        ):
            return 403, "a page of another site may not ask here"
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._security.token and not self._is_own_credential(given):
            try:
                identity = self._security.identify_token(given)
            except CredentialRefused:
                return 401, "the cluster has a token: send it as Authorization: Bearer TOKEN (security.auth.token)"
            if identity.role not in (Role.ADMINISTRATOR, Role.CLIENT) or identity.job:
                return 403, f"a {identity} may not ask here: the page is for clients of all jobs"
        elif not self._security.token and not names_this_machine(host) and host_name(host) not in self._hosts:
            return 403, f"this page is not {host}: ask for it by its address or as localhost"
        if changes and request.headers.get("x-snapline") != "page":
            return 403, "send the header X-Snapline: page with what changes something"
        return None

    def _is_own_credential(self, given: str) -> bool:
        """Whether it is what this process shows to the coordinator, which alone can tell what it opens: whoever has a
        credential and no secret can check no other."""
        own = self._security.current().secrets
        return all(map(is_credential, own)) and any(hmac.compare_digest(given.encode(), each.encode()) for each in own)

    async def _index(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    # --- data ---------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, method: str, message: Message, timeout_s: float = 20.0) -> Any:
        client = request.client.host if request.client is not None else "?"
        return await self._coordinator.call(method, message, f"page for {client}", timeout_s)

    async def _overview(self, request: Request) -> Answer:
        found = await self._ask(request, "GetClusterOverview", pb.GetClusterOverviewRequest())
        return {**message_as_dict(found), "leader": self._coordinator.address}

    async def _jobs(self, request: Request) -> Answer:
        """All that live, and those that have ended last."""
        found = await self._ask(request, "ListJobs", pb.ListJobsRequest())
        ended = sorted((job for job in found.jobs if job.end_time_ms), key=lambda job: -job.end_time_ms)
        shown = {job.job_id for job in ended[:ENDED_JOBS_SHOWN]}
        jobs = [job for job in found.jobs if not job.end_time_ms or job.job_id in shown]
        return pb.ListJobsResponse(jobs=jobs)

    async def _job(self, request: Request) -> Answer:
        details = await self._ask(request, "GetJob", pb.GetJobRequest(job_id=_job_id(request)))
        found = await self._as_dict(details)
        found["configuration"] = {
            key: REDACTED if is_secret(key) else value for key, value in found["configuration"].items()
        }
        return found

    async def _checkpoints(self, request: Request) -> Answer:
        answer: Answer = await self._ask(request, "ListCheckpoints", pb.ListCheckpointsRequest(job_id=_job_id(request)))
        return answer

    async def _checkpoint(self, request: Request) -> Answer:
        number = whole_number("checkpoint_id", request.path_params["checkpoint_id"])
        message = pb.GetCheckpointRequest(job_id=_job_id(request), checkpoint_id=number)
        answer: Answer = await self._ask(request, "GetCheckpoint", message)
        return answer

    async def _snapshot_state(self, request: Request) -> Answer:
        number = whole_number("checkpoint_id", request.path_params["checkpoint_id"])
        message = pb.GetSnapshotStateRequest(job_id=_job_id(request), checkpoint_id=number)
        answer: Answer = await self._ask(request, "GetSnapshotState", message, LONG_CALL_SECONDS)
        return answer

    async def _recent(self, request: Request) -> Answer:
        return self._figures.columns_of(_job_id(request), whole_number("hours", request.query_params.get("hours", "1")))

    async def _why(self, request: Request) -> Answer:
        message = pb.ExplainJobRequest(job_id=_job_id(request), without_stacks="stacks" not in request.query_params)
        answer: Answer = await self._ask(request, "ExplainJob", message)
        return answer

    async def _leading_keys(self, request: Request) -> Answer:
        """The page asks for them when somebody presses the button, because the rows of the job are looked at."""
        # loads Arrow, which the page can do without else
        from snapline.coordinator.leading_keys import ROUNDS, UncountableKeys, count_keys, tap_of_keys

        details = await self._ask(request, "GetJob", pb.GetJobRequest(job_id=_job_id(request)))
        vertex_id = str(request.path_params["vertex_id"])
        wanted = tap_of_keys(details, vertex_id)
        if wanted is None:
            raise CoordinatorAnswer(404, f"the rows of vertex {vertex_id!r} come by no key")
        for _ in range(ROUNDS):
            tapped = await self._ask(request, "TapOperator", wanted)
            if tapped.parts:
                try:
                    return {"keys": await asyncio.to_thread(count_keys, details, vertex_id, tapped.parts)}
                except UncountableKeys as error:
                    raise CoordinatorAnswer(502, str(error)) from None
        return {"keys": []}

    async def _stacks(self, request: Request) -> Answer:
        answer: Answer = await self._ask(request, "DumpThreads", pb.DumpThreadsRequest(job_id=_job_id(request)))
        return answer

    async def _logs(self, request: Request) -> Answer:
        of, lines = request.path_params, whole_number("lines", request.query_params.get("lines", str(LOG_LINES)))
        message = pb.DumpThreadsRequest(
            job_id=of.get("job_id", ""), resource_id=of.get("resource_id", ""), log_lines=lines
        )
        answer: Answer = await self._ask(request, "DumpThreads", message)
        return answer

    async def _configuration(self, request: Request) -> Answer:
        answer: Answer = await self._ask(request, "GetConfiguration", pb.GetConfigurationRequest())
        return answer

    async def _task_managers(self, request: Request) -> Answer:
        answer: Answer = await self._ask(request, "ListTaskManagers", pb.ListTaskManagersRequest())
        return answer

    # --- what changes something ---------------------------------------------------------------------------------------

    async def _cancel(self, request: Request) -> Answer:
        answer: Answer = await self._ask(request, "CancelJob", pb.CancelJobRequest(job_id=_job_id(request)))
        return answer

    async def _savepoint(self, request: Request) -> Answer:
        body = await read_json(request)
        message = pb.TriggerSavepointRequest(job_id=_job_id(request), trigger_id=text_in(body, "trigger_id"))
        answer: Answer = await self._ask(request, "TriggerSavepoint", message, LONG_CALL_SECONDS)
        return answer

    async def _stop(self, request: Request) -> Answer:
        body = await read_json(request)
        message = pb.StopWithSavepointRequest(job_id=_job_id(request), trigger_id=text_in(body, "trigger_id"))
        answer: Answer = await self._ask(request, "StopWithSavepoint", message, LONG_CALL_SECONDS)
        return answer

    async def _rescale(self, request: Request) -> Answer:
        parallelism = number_in(await read_json(request), "parallelism")
        message = pb.RescaleRequest(job_id=_job_id(request), parallelism=parallelism)
        answer: Answer = await self._ask(request, "Rescale", message, LONG_CALL_SECONDS)
        return answer

    # --- plots --------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Take the figures of all running jobs, again and again, and seldom while nobody looks; a coordinator that is
        away leaves a hole."""
        while True:
            with contextlib.suppress(CoordinatorAnswer):
                jobs = await self._coordinator.call("ListJobs", pb.ListJobsRequest())
                for job in jobs.jobs:
                    if not job.end_time_ms:
                        with contextlib.suppress(CoordinatorAnswer):  # the others are looked at all the same
                            await self._look_at(job.job_id)
            if self._looked.is_set():
                self._looked.clear()
                await asyncio.sleep(PERIOD_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._looked.wait(), UNSEEN_PERIOD_SECONDS)

    async def _look_at(self, job_id: str) -> None:
        details = await self._coordinator.call("GetJob", pb.GetJobRequest(job_id=job_id))
        checkpoints = await self._coordinator.call("ListCheckpoints", pb.ListCheckpointsRequest(job_id=job_id))
        latest = checkpoints.latest_completed if checkpoints.HasField("latest_completed") else None
        self._figures.add(details, latest, round(time.time() * 1000))


def _job_id(request: Request) -> str:
    return str(request.path_params["job_id"])
