# syntax=docker/dockerfile:1
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t topodra/topodra:TAG .             the node agent (last stage)
#   docker buildx build --target kubectl-topodra -t topodra/kubectl-topodra:TAG .               the user's command
#   docker buildx build --target simulator -t topodra/simulator:TAG .                           an agent that can simulate

# Compiles on the builder's own architecture and links for the target's: emulation would take ten times as long.
FROM --platform=$BUILDPLATFORM golang:1.26-trixie AS build
ARG BUILDARCH TARGETARCH
RUN set -eu; \
    case "$BUILDARCH-$TARGETARCH" in \
      amd64-amd64 | arm64-arm64) exit ;; \
      amd64-arm64) cross="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;; \
      arm64-amd64) cross="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" ;; \
      *) echo "topodra is built on and for amd64 and arm64, not on $BUILDARCH for $TARGETARCH" >&2; exit 1 ;; \
    esac; \
    apt-get update; \
    apt-get install -y --no-install-recommends $cross; \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV GOOS=linux GOARCH=$TARGETARCH GOFLAGS="-trimpath -buildvcs=false"
# The agent needs cgo: go-nvml opens libnvidia-ml.so.1 with dlopen, which is glibc's. go-nvml marks half of NVML as deprecated.
# nvidia-cdi-hook is static: the runtime runs it on the host, whose C library may be older than this one. One of its hooks calls
# NVML and cannot then: CUDA memory limits, for containers that ask for them with NVIDIA_GPU_MEMORY_LIMIT.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    set -eu; \
    case "$TARGETARCH" in amd64) CC=x86_64-linux-gnu-gcc ;; arm64) CC=aarch64-linux-gnu-gcc ;; esac; \
    export CC CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"; \
    mkdir -p /out; \
    CGO_ENABLED=1 go build -tags netgo,osusergo -ldflags "-s -w" -o /out/topodra ./cmd/topodra; \
    CGO_ENABLED=0 go build -ldflags "-s -w" -o /out/kubectl-topodra ./cmd/kubectl-topodra; \
    CGO_ENABLED=0 go build -ldflags "-s -w" -o /out/topodra-hook ./cmd/topodra-hook; \
    CGO_ENABLED=1 go build -tags netgo,osusergo -ldflags "-s -w -extldflags=-static" -o /out/nvidia-cdi-hook \
      github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook; \
    internal/simulate/nvml/build.sh /out/libnvidia-ml.so.1

FROM scratch AS kubectl-topodra
COPY --from=build /out/kubectl-topodra /kubectl-topodra
USER 65532:65532
ENTRYPOINT ["/kubectl-topodra"]

FROM debian:trixie-slim AS base
COPY --from=build /out/topodra /out/topodra-hook /out/kubectl-topodra /out/nvidia-cdi-hook /usr/bin/
# Root: the agent writes CDI files and sockets in directories of the host's root, and enters network namespaces of pods.
USER 0:0
ENTRYPOINT ["topodra"]

# The double of NVML is in this stage only, so that no agent of a real cluster can be told to simulate.
FROM base AS simulator
COPY --from=build /out/libnvidia-ml.so.1 /usr/lib/topodra/libnvidia-ml.so.1

FROM base AS topodra
