"""The web application: requests, batches, responses and error messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from hasten.errors import HastenError
from hasten.serving.batching import Batcher, Overloaded
from hasten.serving.engine import Answer, Engine, Question, Unknown
from hasten.serving.page import page
from hasten.serving.schema import (
    Health,
    PredictBody,
    Predicted,
    Problem,
    RecommendBody,
    Recommended,
    Similar,
    SimilarBody,
)

#: most requests that wait for a batch; further ones are answered by 503
WAITING = 1024
#: the fields of each request
_FIELDS = {
    "/recommend": RecommendBody.model_fields,
    "/similar": SimilarBody.model_fields,
    "/predict": PredictBody.model_fields,
}


def create_app(engine: Engine, wait: float = 0.0, limit: int = 64) -> FastAPI:
    """The application over an engine.

    wait: seconds for which a request waits for others; limit: most requests of a batch.
    """
    batcher: Batcher[Question, Answer] = Batcher(engine.answer, wait, limit, WAITING)
    about, items = engine.about(), engine.items

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with batcher:
            yield
        engine.close()

    app = FastAPI(
        title=f"hasten: {about['model']} on {about['data']}",
        description="Requests take and return the ids of the training data.",
        version=about["version"],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={code: {"model": Problem} for code in (404, 422, 503)},
    )
    _explain_errors(app)

    def listed(answer: Answer) -> list[dict[str, Any]]:
        scored = [
            {"item_id": items.labels[i], "score": score} for i, score in zip(*answer, strict=True)
        ]
        if items.names is not None:
            for each, i in zip(scored, answer[0], strict=True):
                each["name"] = items.names[i]
        return scored

    @app.post("/recommend", response_model=Recommended)
    async def recommend(body: RecommendBody) -> Any:
        """The best items for a known user, or for a history."""
        question, ignored = engine.recommendation(body)
        scored = listed(await batcher.ask(question))
        return JSONResponse({"items": scored, "ignored": ignored})

    @app.post("/similar", response_model=Similar)
    async def similar(body: SimilarBody) -> Any:
        """The items that are most similar to an item, by the cosine of their vectors."""
        return JSONResponse({"items": listed(await batcher.ask(engine.similarity(body)))})

    @app.post("/predict", response_model=Predicted)
    async def predict(body: PredictBody) -> Any:
        """The best tails or heads of an incomplete triple of a knowledge graph."""
        question, known = engine.prediction(body)
        answers = set(known.tolist())
        given = body.model_dump(include={"head", "relation", "tail"})
        missing = "tail" if body.tail is None else "head"
        triples = [
            {**given, missing: items.labels[i], "score": score, "known": i in answers}
            for i, score in zip(*await batcher.ask(question), strict=True)
        ]
        return JSONResponse({"triples": triples})

    @app.get("/health", response_model=Health)
    async def health() -> Any:
        """What is served, and how many requests were answered in how many batches."""
        counts = {"questions": batcher.questions, "batches": batcher.batches}
        return JSONResponse({"status": "ok", **about, **counts})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    return app


def _explain_errors(app: FastAPI) -> None:
    """Answer every error by ``{"error": {"code", "message"}}``."""

    def problem(status: int, code: str, message: str) -> JSONResponse:
        return JSONResponse({"error": {"code": code, "message": message}}, status)

    @app.exception_handler(HastenError)
    async def _hasten(_: Request, error: HastenError) -> JSONResponse:
        status = 404 if isinstance(error, Unknown) else 422 if error.exit_code == 2 else 500
        return problem(status, error.code, str(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        fields = _FIELDS.get(request.url.path, ())
        problems = {_told(each, fields) for each in error.errors()}
        return problem(422, "request", "; ".join(sorted(problems)))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        paths = ", ".join(app.openapi()["paths"])
        message = (
            f"{request.method} {request.url.path}: {error.detail}; there are {paths} and /docs"
        )
        return problem(error.status_code, "request", message)

    @app.exception_handler(Overloaded)
    async def _overloaded(_: Request, __: Overloaded) -> JSONResponse:
        response = problem(503, "overloaded", f"{WAITING} requests wait already: try again later")
        response.headers["Retry-After"] = "1"
        return response


def _told(error: Any, fields: Iterable[str]) -> str:
    """One mistake of a request: where, and what is expected there. fields: of the request."""
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']} (at character {error['loc'][-1]})"
    where = ".".join(str(part) for part in error["loc"][1:])
    if not where:
        return "the body must be a JSON object, sent with the header content-type: application/json"
    if error["type"] == "extra_forbidden":
        return f"{where}: no such field (there are {', '.join(fields)})"
    if error["type"] == "missing":
        return f"{where} is missing: the request needs it"
    if error["type"] in ("string_type", "int_type"):  # one for each type of a label
        return f"{where.removesuffix('.str').removesuffix('.int')}: must be text or a whole number"
    return f"{where}: {error['msg']}"
