"""Flink's REST API (`/v1/...`) on the page's server: asks the coordinator, and lets pure translations write answers.

Paths, methods, status codes and `{"errors": [...]}` are Flink's, so that what was written for Flink works; a path may
also begin without `/v1`. What there is stands in `openapi.json`. Jars, data sets, logs and the shutdown of a
cluster are not there. Who may ask is decided by the page.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from snapline.coordinator.rpc.coordinator_stub import CoordinatorAnswer, CoordinatorStub
from snapline.coordinator.web import flink_checkpoints, flink_cluster, flink_jobs
from snapline.coordinator.web.flink_cluster import BadParameter, Figures
from snapline.coordinator.web.large_answers import LargeAnswers
from snapline.coordinator.web.request_bodies import BodyRefused, flag_in, read_json, text_in, whole_number
from snapline.dataflow.config import SAVEPOINT_DIRECTORY
from snapline.protos import client_pb2 as pb
from snapline.runtime.version import VERSION

OPENAPI = Path(__file__).parent / "openapi.json"
JOBS_PER_PAGE = 1_000
FLINKS_ID = re.compile(r"[0-9a-f]{32}")

Answer = dict[str, Any] | list[Any] | JSONResponse
Handler = Callable[[Request], Awaitable[Answer]]
Refusal = tuple[int, str]
"""Status code and line of a request that is not answered."""


class FlinkError(Exception):
    """An answer that is an error: a status code and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class FlinkRest:
    """The routes of Flink's API."""

    def __init__(
        self,
        coordinator: CoordinatorStub,
        settings: Mapping[str, str],
        refusal: Callable[[Request], Refusal | None],
        large: LargeAnswers,
    ) -> None:
        """`settings`: those of this process, for `/jobmanager/config`. `refusal`: why a request is not answered.
        `large`: makes what is large beside the loop."""
        self._coordinator = coordinator
        self._settings = settings
        self._refusal = refusal
        self._large = large
        job, vertex = "/jobs/{jobid}", "/jobs/{jobid}/vertices/{vertexid}"
        checkpoint = job + "/checkpoints/details/{checkpointid}"
        subtask = vertex + "/subtasks/{subtaskindex}"
        attempt = subtask + "/attempts/{attempt}"
        get: dict[str, Handler] = {
            "/overview": self._overview,
            "/config": self._config,
            "/jobmanager/config": self._jobmanager_config,
            "/jobmanager/metrics": self._jobmanager_metrics,
            "/jobs": self._jobs,
            "/jobs/overview": self._jobs_overview,
            "/jobs/metrics": self._jobs_metrics,
            job: self._of_job(flink_jobs.job_details),
            f"{job}/status": self._status,
            f"{job}/plan": self._of_job(lambda details, _: flink_jobs.job_plan(details)),
            f"{job}/config": self._of_job(lambda details, _: flink_jobs.job_config(details)),
            f"{job}/accumulators": self._of_job(lambda details, _: flink_jobs.job_accumulators(details)),
            f"{job}/execution-result": self._of_job(lambda details, _: flink_jobs.execution_result(details)),
            f"{job}/exceptions": self._exceptions,
            f"{job}/metrics": self._job_metrics,
            f"{job}/checkpoints": self._checkpoints,
            f"{job}/checkpoints/config": self._of_job(lambda details, _: flink_checkpoints.checkpoint_config(details)),
            checkpoint: self._checkpoint,
            checkpoint + "/subtasks/{vertexid}": self._checkpoint_of_vertex,
            job + "/savepoints/{triggerid}": self._savepoint,
            vertex: self._of_vertex(flink_jobs.vertex_details),
            f"{vertex}/backpressure": self._of_vertex(flink_jobs.back_pressure),
            f"{vertex}/watermarks": self._of_vertex(lambda found, _: flink_cluster.watermarks(found)),
            f"{vertex}/metrics": self._vertex_metrics,
            f"{vertex}/taskmanagers": self._of_vertex(flink_jobs.vertex_task_managers),
            f"{vertex}/subtasktimes": self._of_vertex(flink_jobs.subtask_times),
            f"{vertex}/accumulators": self._of_vertex(lambda found, _: flink_jobs.vertex_accumulators(found)),
            f"{vertex}/subtasks/accumulators": self._of_vertex(lambda found, _: flink_jobs.subtask_accumulators(found)),
            f"{vertex}/subtasks/metrics": self._subtask_metrics,
            subtask: self._of_subtask(flink_jobs.subtask_details),
            attempt: self._of_subtask(flink_jobs.subtask_details),
            f"{attempt}/accumulators": self._of_subtask(lambda found, _: flink_jobs.attempt_accumulators(found)),
            "/taskmanagers": self._task_managers,
            "/taskmanagers/metrics": self._task_managers_metrics,
            "/taskmanagers/{taskmanagerid}": self._task_manager,
            "/taskmanagers/{taskmanagerid}/metrics": self._task_manager_metrics,
            "/taskmanagers/{taskmanagerid}/thread-dump": self._thread_dump,
        }
        change = [
            (job, "PATCH", self._cancel),
            (f"{job}/savepoints", "POST", self._trigger_savepoint),
            (f"{job}/stop", "POST", self._stop),
        ]
        self.routes: list[Route] = [Route("/v1/openapi.json", _openapi)]
        for prefix in ("/v1", ""):
            self.routes += [Route(prefix + path, self._answering(handler, 200)) for path, handler in get.items()]
            self.routes += [
                Route(prefix + path, self._answering(handler, 202), methods=[method])
                for path, method, handler in change
            ]
        self.routes.append(Route("/v1/{path:path}", _not_found, methods=["GET", "POST", "PATCH", "DELETE", "PUT"]))

    def _answering(self, handler: Handler, status: int) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            refused = self._refusal(request)
            if refused is not None:
                return _errors(*refused)
            try:
                answer = await handler(request)
                return answer if isinstance(answer, JSONResponse) else JSONResponse(answer, status)
            except FlinkError as error:
                return _errors(error.status, str(error))
            except CoordinatorAnswer as error:
                return _errors(error.status, str(error))
            except BodyRefused as error:
                return _errors(error.status, str(error))
            except (BadParameter, ValueError) as error:
                return _errors(400, f"Bad request: {error}")

        return respond

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, method: str, message: Any) -> Any:
        client = request.client.host if request.client is not None else "?"
        return await self._coordinator.call(method, message, f"rest for {client}")

    async def _all_jobs(self, request: Request) -> list[pb.JobOverview]:
        jobs: list[pb.JobOverview] = []
        token = ""
        while True:
            page = await self._ask(request, "ListJobs", pb.ListJobsRequest(page_size=JOBS_PER_PAGE, page_token=token))
            jobs += page.jobs
            token = page.next_page_token
            if not token:
                return jobs

    async def _details(self, request: Request) -> pb.JobDetails:
        found: pb.JobDetails = await self._ask(request, "GetJob", pb.GetJobRequest(job_id=_id(request, "jobid")))
        return found

    async def _vertex(self, request: Request) -> pb.VertexDetails:
        wanted = _id(request, "vertexid")
        for vertex in (await self._details(request)).vertices:
            if vertex.vertex_id == wanted:
                return vertex
        raise FlinkError(404, f"job {_id(request, 'jobid')} has no vertex {wanted}")

    async def _registered(self, request: Request) -> list[pb.TaskManagerDetails]:
        found = await self._ask(request, "ListTaskManagers", pb.ListTaskManagersRequest())
        return list(found.task_managers)

    async def _one_registered(self, request: Request) -> pb.TaskManagerDetails:
        wanted = str(request.path_params["taskmanagerid"])
        for each in await self._registered(request):
            if each.resource_id == wanted:
                return each
        raise FlinkError(404, f"no TaskManager {wanted!r} is registered; /v1/taskmanagers lists all")

    def _of_job(self, translate: Callable[[pb.JobDetails, int], Answer]) -> Handler:
        async def handle(request: Request) -> Answer:
            details = await self._details(request)
            return await self._large.make(details, lambda: JSONResponse(translate(details, _now_ms())))

        return handle

    def _of_vertex(self, translate: Callable[[pb.VertexDetails, int], Answer]) -> Handler:
        async def handle(request: Request) -> Answer:
            vertex = await self._vertex(request)
            return await self._large.make(vertex, lambda: JSONResponse(translate(vertex, _now_ms())))

        return handle

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def _overview(self, request: Request) -> Answer:
        cluster = await self._ask(request, "GetClusterOverview", pb.GetClusterOverviewRequest())
        return flink_cluster.overview(cluster, await self._all_jobs(request))

    async def _config(self, _request: Request) -> Answer:
        return flink_cluster.dashboard_configuration(VERSION)

    async def _jobmanager_config(self, _request: Request) -> Answer:
        return flink_cluster.cluster_configuration(self._settings)

    async def _jobmanager_metrics(self, request: Request) -> Answer:
        cluster = await self._ask(request, "GetClusterOverview", pb.GetClusterOverviewRequest())
        return flink_cluster.chosen(flink_cluster.cluster_figures(cluster), request.query_params.get("get"))

    async def _task_managers(self, request: Request) -> Answer:
        return flink_cluster.task_managers(await self._registered(request))

    async def _task_manager(self, request: Request) -> Answer:
        found = await self._one_registered(request)
        running = [job for job in await self._all_jobs(request) if not flink_jobs.has_ended(job)]
        jobs = [await self._ask(request, "GetJob", pb.GetJobRequest(job_id=job.job_id)) for job in running]
        return flink_cluster.task_manager_details(found, jobs)

    async def _task_manager_metrics(self, request: Request) -> Answer:
        figures = flink_cluster.task_manager_figures(await self._one_registered(request))
        return flink_cluster.chosen(figures, request.query_params.get("get"))

    async def _task_managers_metrics(self, request: Request) -> Answer:
        wanted = _chosen_ids(request, "taskmanagers")
        found = [each for each in await self._registered(request) if wanted is None or each.resource_id in wanted]
        return _aggregated(request, [flink_cluster.task_manager_figures(each) for each in found])

    async def _thread_dump(self, request: Request) -> Answer:
        found = await self._one_registered(request)
        dumps = await self._ask(request, "DumpThreads", pb.DumpThreadsRequest(resource_id=found.resource_id))
        if not dumps.dumps:
            raise FlinkError(504, f"TaskManager {found.resource_id!r} did not answer in time")
        return flink_cluster.thread_dump(dumps.dumps[0])

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def _jobs(self, request: Request) -> Answer:
        return flink_jobs.job_ids(await self._all_jobs(request))

    async def _jobs_overview(self, request: Request) -> Answer:
        return flink_jobs.jobs_overview(await self._all_jobs(request), _now_ms())

    async def _status(self, request: Request) -> Answer:
        return {"status": flink_jobs.status_of((await self._details(request)).overview)}

    async def _exceptions(self, request: Request) -> Answer:
        given = request.query_params.get("maxExceptions")
        at_most = flink_jobs.DEFAULT_EXCEPTIONS if given is None else whole_number("maxExceptions", given)
        return flink_jobs.job_exceptions(await self._details(request), max(at_most, 0))

    async def _figures(self, request: Request, job_id: str) -> Figures:
        details = await self._ask(request, "GetJob", pb.GetJobRequest(job_id=job_id))
        checkpoints = await self._ask(request, "ListCheckpoints", pb.ListCheckpointsRequest(job_id=job_id))
        return flink_cluster.job_figures(details, checkpoints, _now_ms())

    async def _job_metrics(self, request: Request) -> Answer:
        return flink_cluster.chosen(
            await self._figures(request, _id(request, "jobid")), request.query_params.get("get")
        )

    async def _jobs_metrics(self, request: Request) -> Answer:
        wanted = _chosen_ids(request, "jobs")
        jobs = [job for job in await self._all_jobs(request) if not flink_jobs.has_ended(job)]
        chosen = [job.job_id for job in jobs if wanted is None or job.job_id in wanted]
        return _aggregated(request, [await self._figures(request, job_id) for job_id in chosen])

    async def _vertex_metrics(self, request: Request) -> Answer:
        vertex, get = await self._vertex(request), request.query_params.get("get")
        return await self._large.make(
            vertex, lambda: JSONResponse(flink_cluster.chosen(flink_cluster.vertex_figures(vertex), get))
        )

    async def _subtask_metrics(self, request: Request) -> Answer:
        vertex = await self._vertex(request)

        def make() -> JSONResponse:
            chosen = flink_cluster.chosen_subtasks(vertex, request.query_params.get("subtasks"))
            return JSONResponse(_aggregated(request, [flink_cluster.subtask_figures(each) for each in chosen]))

        return await self._large.make(vertex, make)

    def _of_subtask(self, translate: Callable[[pb.SubtaskDetails, int], Answer]) -> Handler:
        """Answer for the present attempt of a subtask, which a path may name: of others nothing is known any more."""

        async def handle(request: Request) -> Answer:
            wanted = whole_number("subtaskindex", request.path_params["subtaskindex"])
            attempt = request.path_params.get("attempt")
            number = None if attempt is None else whole_number("attempt", attempt)
            vertex = await self._vertex(request)
            for subtask in vertex.subtasks:
                if subtask.subtask_index == wanted:
                    if number not in (None, subtask.attempt_number):
                        raise FlinkError(
                            404, f"attempt {number} is not known; the present one is {subtask.attempt_number}"
                        )
                    return translate(subtask, _now_ms())
            raise FlinkError(
                404, f"vertex {vertex.vertex_id} has {len(vertex.subtasks)} subtasks, and none is {wanted}"
            )

        return handle

    # --- checkpoints and savepoints -----------------------------------------------------------------------------------

    async def _checkpoints(self, request: Request) -> Answer:
        message = pb.ListCheckpointsRequest(job_id=_id(request, "jobid"))
        return flink_checkpoints.checkpointing_statistics(await self._ask(request, "ListCheckpoints", message))

    async def _checkpoint_details(self, request: Request) -> pb.CheckpointDetails:
        number = whole_number("checkpointid", request.path_params["checkpointid"])
        message = pb.GetCheckpointRequest(job_id=_id(request, "jobid"), checkpoint_id=number)
        found: pb.CheckpointDetails = await self._ask(request, "GetCheckpoint", message)
        return found

    async def _checkpoint(self, request: Request) -> Answer:
        details = await self._checkpoint_details(request)
        make = flink_checkpoints.checkpoint_statistics
        return await self._large.make(details, lambda: JSONResponse(make(details.overview, details)))

    async def _checkpoint_of_vertex(self, request: Request) -> Answer:
        details = await self._checkpoint_details(request)
        vertex = flink_checkpoints.history_vertex(details, _id(request, "vertexid"))
        if vertex is None:
            raise FlinkError(404, f"checkpoint {details.overview.checkpoint_id} has no such vertex")
        return await self._large.make(vertex, lambda: JSONResponse(flink_checkpoints.task_statistics(details, vertex)))

    async def _savepoint(self, request: Request) -> Answer:
        message = pb.GetSavepointRequest(job_id=_id(request, "jobid"), trigger_id=str(request.path_params["triggerid"]))
        return flink_checkpoints.savepoint_status(await self._ask(request, "GetSavepoint", message))

    # --- what changes something ---------------------------------------------------------------------------------------

    async def _cancel(self, request: Request) -> Answer:
        mode = request.query_params.get("mode", "cancel").lower()
        if mode == "stop":  # Flink's code for it
            raise FlinkError(308, "mode=stop is gone: cancel, or POST to /v1/jobs/:jobid/stop, which takes a savepoint")
        if mode != "cancel":
            raise FlinkError(400, f"mode = {mode!r}: only cancel is understood")
        overview = (await self._details(request)).overview
        status = flink_jobs.status_of(overview)
        if flink_jobs.has_ended(overview):
            if status == "CANCELED":
                return {}
            raise FlinkError(409, f"job {overview.job_id} is {status} already, and cannot be cancelled")
        await self._ask(request, "CancelJob", pb.CancelJobRequest(job_id=overview.job_id))
        return {}

    async def _trigger_savepoint(self, request: Request) -> Answer:
        body = await read_json(request)
        directory, trigger = text_in(body, "target-directory"), text_in(body, "triggerId")
        cancels = flag_in(body, "cancel-job")
        await self._check_target(request, directory)
        if cancels:
            return await self._begin_stop(request, directory, trigger, drain=False)
        message = pb.TriggerSavepointRequest(
            job_id=_id(request, "jobid"), target_directory=directory, trigger_id=trigger, detached=True
        )
        return {"request-id": (await self._ask(request, "TriggerSavepoint", message)).trigger_id}

    async def _stop(self, request: Request) -> Answer:
        body = await read_json(request)
        directory, trigger = text_in(body, "targetDirectory"), text_in(body, "triggerId")
        drain = flag_in(body, "drain")
        await self._check_target(request, directory)
        return await self._begin_stop(request, directory, trigger, drain=drain)

    async def _begin_stop(self, request: Request, directory: str, trigger: str, *, drain: bool) -> Answer:
        message = pb.StopWithSavepointRequest(
            job_id=_id(request, "jobid"), target_directory=directory, drain=drain, trigger_id=trigger, detached=True
        )
        return {"request-id": (await self._ask(request, "StopWithSavepoint", message)).trigger_id}

    async def _check_target(self, request: Request, directory: str) -> None:
        """Raises FlinkError for a job that has ended, and for a savepoint that has no directory to lie in, and
        CoordinatorAnswer for a job that nobody knows."""
        details = await self._details(request)
        overview = details.overview
        if flink_jobs.has_ended(overview):
            raise FlinkError(
                409, f"job {overview.job_id} is {flink_jobs.status_of(overview)}: there is nothing to save"
            )
        known = details.vertices  # else it is starting, and its settings are not known yet
        if known and not (directory or details.configuration.get(SAVEPOINT_DIRECTORY.key)):
            raise FlinkError(400, f"Bad request: name a directory: {SAVEPOINT_DIRECTORY.key} of the job is not set")


def _aggregated(request: Request, members: list[Figures]) -> Answer:
    asked = request.query_params
    return flink_cluster.aggregated(members, asked.get("get"), asked.get("agg"))


def _chosen_ids(request: Request, parameter: str) -> set[str] | None:
    given = request.query_params.get(parameter)
    return None if given is None else {part.strip() for part in given.split(",")}


def _id(request: Request, parameter: str) -> str:
    """An id in the path. Raises FlinkError for one that cannot be any."""
    given = str(request.path_params[parameter])
    if FLINKS_ID.fullmatch(given) is None:
        raise FlinkError(400, f"Bad request: {parameter} = {given!r} does not have 32 hexadecimal digits")
    return given


def _now_ms() -> int:
    return round(time.time() * 1000)


def _errors(status: int, line: str) -> Response:
    return JSONResponse({"errors": [line]}, status)


async def _openapi(_request: Request) -> Response:
    return FileResponse(OPENAPI, media_type="application/json")


async def _not_found(request: Request) -> Response:
    return _errors(404, f"Not found: {request.url.path}; /v1/openapi.json lists all that there is")
