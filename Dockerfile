# Understudy, one image for brokers, commands and the clients of the stress run. See docs/docker.md.
# Plain Dockerfile syntax: the legacy builder and BuildKit both build it.

ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/understudy
WORKDIR /build
# The libraries are a layer of their own: a change of the sources does not install them again.
ARG EXTRAS=zookeeper,kafka,feed,stress
COPY pyproject.toml ./
RUN EXTRAS="$EXTRAS" python3 -c "import os, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *(each for extra in os.environ['EXTRAS'].split(',') \
for each in project['optional-dependencies'][extra]), sep='\n')" > requirements.txt \
    && /opt/understudy/bin/pip install --no-cache-dir --disable-pip-version-check --requirement requirements.txt
COPY . ./
RUN /opt/understudy/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .

FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/understudy understudy \
    && install -d -o understudy -g understudy -m 0700 /var/lib/understudy /var/lib/understudy/data /var/lib/understudy/feed
COPY --from=build /opt/understudy/ /opt/understudy/
COPY docker/understudy-health /usr/local/bin/
ENV PATH=/opt/understudy/bin:$PATH PYTHONUNBUFFERED=1
USER understudy
WORKDIR /var/lib/understudy
VOLUME ["/var/lib/understudy"]
EXPOSE 5672 7672 8672
STOPSIGNAL SIGTERM
ENTRYPOINT ["understudy"]
CMD ["serve", "--config", "/etc/understudy/understudy.toml"]
