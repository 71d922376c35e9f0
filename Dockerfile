# syntax=docker/dockerfile:1
# An image for pipelines (the default) and one that serves (--target serve): docs/how-to/docker.md.
# UV_TORCH_BACKEND=cpu is for machines without a GPU. Empty, torch is PyPI's, which brings the CUDA
# libraries: the base need not have them, and the hashes of all files are checked.

# Not the slim image, which has no make. Without bytecode a command starts in twice the time.
FROM python:3.11-bookworm AS dependencies
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
WORKDIR /build
ARG UV_TORCH_BACKEND=cpu
ARG EXTRAS=
COPY Makefile pyproject.toml constraints-hashed.txt ./
RUN --mount=type=cache,target=/root/.cache/uv \
    make install VENV=/opt/venv PACKAGE="--requirement pyproject.toml ${EXTRAS}"

FROM dependencies AS wheel
COPY README.md LICENSE dvc.yaml ./
COPY conf conf
COPY recipes recipes
COPY src src
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/venv/bin/uv build --wheel --out-dir /dist \
      --build-constraint constraints-hashed.txt --require-hashes

FROM python:3.11-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="compo-pipeline" \
      org.opencontainers.image.description="Compositional fine-tuning of CLIP-like models" \
      org.opencontainers.image.licenses="Apache-2.0 AND CC-BY-SA-4.0"
# Runs note the commit of their project. Any user may write to the home, for --user.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git=1:2.39.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 compo \
    && install --directory --mode 1777 /home/compo /project
# USER: libraries ask for a name, and a uid of --user has none.
ENV PATH=/opt/venv/bin:$PATH HOME=/home/compo USER=compo UV_COMPILE_BYTECODE=1
COPY --from=dependencies /opt/venv /opt/venv
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    /opt/venv/bin/uv pip install --python /opt/venv/bin/python --offline --no-cache --no-deps \
      /dist/*.whl
WORKDIR /project
USER 1000
CMD ["compo-pipeline", "--help"]

FROM runtime AS serve
EXPOSE 5001
HEALTHCHECK --start-period=3m \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5001/ping', timeout=9)"]
CMD ["compo-pipeline", "serve", "--host", "0.0.0.0"]

FROM runtime AS pipelines
