# hasten serve in a container: docker build -t hasten-serve .
# docker run --rm -p 8000:8000 -v $PWD/runs/mine:/model:ro hasten-serve
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir ".[serve]"

RUN useradd --no-create-home service
USER service
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD python -c \
  "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"
# exec form: signals reach the service, which answers its requests before it ends
ENTRYPOINT ["hasten", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
