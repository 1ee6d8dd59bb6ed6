# docker build -t hvtrain .
# docker run --rm --shm-size 1g hvtrain mpirun --bind-to none -np 2 hvtrain --samples 5000
# The Debian package is made in the first stage and installed in the second, which brings what it depends on.
FROM debian:12 AS build
ENV DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends build-essential
WORKDIR /src/hvtrain
COPY debian/control debian/
RUN apt-get build-dep -y --no-install-recommends ./
COPY . .
RUN dpkg-buildpackage -b -us -uc

FROM debian:12
COPY --from=build /src/hvtrain_*.deb /tmp/
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /tmp/hvtrain_*.deb \
    && rm -rf /tmp/hvtrain_*.deb /var/lib/apt/lists/* \
    && useradd --create-home hvtrain
USER hvtrain
WORKDIR /home/hvtrain
CMD ["hvtrain", "--help"]
