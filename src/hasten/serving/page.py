"""The documentation page of the service, from its OpenAPI schema."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

_STYLE = """
:root{color-scheme:light dark;font-family:system-ui,sans-serif}
body{max-width:46rem;margin:2rem auto;padding:0 1rem;line-height:1.4}
textarea,pre{width:100%;box-sizing:border-box;font-family:monospace;overflow:auto}
td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}
"""
_SCRIPT = """
for (const form of document.forms) form.addEventListener("submit", async event => {
  event.preventDefault();
  const out = form.querySelector("pre"), area = form.querySelector("textarea");
  const body = area ? {body: area.value, headers: {"content-type": "application/json"}} : {};
  const begin = performance.now();
  const got = await fetch(form.dataset.path, {method: form.dataset.method, ...body});
  const took = (performance.now() - begin).toFixed(1);
  out.textContent = `${got.status} in ${took} ms\\n${JSON.stringify(await got.json(), null, 1)}`;
});
"""


def page(openapi: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description, with a form to try each request."""
    schemas = openapi.get("components", {}).get("schemas", {})
    parts = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            parts.append(_operation(path, method, operation, schemas.get(name)))
    title = html.escape(openapi["info"]["title"])
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
        f'content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{html.escape(openapi['info'].get('description', ''))} "
        f'<a href="openapi.json">openapi.json</a></p>{"".join(parts)}<script>{_SCRIPT}</script>'
    )


def _operation(
    path: str, method: str, operation: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> str:
    description, area = html.escape(operation.get("description", "")), ""
    if schema is not None:
        required = schema.get("required", ())
        rows = "".join(
            f"<tr><td><code>{html.escape(name)}</code>{' *' if name in required else ''}<td>"
            f"{html.escape(each.get('description', ''))}<td>"
            f"{'' if each.get('default') is None else html.escape(json.dumps(each['default']))}"
            for name, each in schema["properties"].items()
        )
        example = json.dumps((schema.get("examples") or [dict.fromkeys(required, "")])[0])
        area = (
            f"<table><tr><th>field<th>meaning<th>default{rows}</table>"
            f"<textarea rows=3>{html.escape(example)}</textarea>"
        )
    return (
        f"<h2>{method.upper()} {html.escape(path)}</h2><p>{description}</p>"
        f'<form data-method="{method.upper()}" data-path="{html.escape(path[1:])}">{area}'
        "<button>Send</button><pre></pre></form>"
    )
