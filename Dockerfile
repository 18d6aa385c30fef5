# The suite in a container, on CPU or (--build-arg GPU=1) with the CUDA libraries, which TensorFlow
# takes from Python packages: the host needs NVIDIA's driver and container toolkit only.
# --build-arg STACK=published has the packages of the recorded results.
#
#     docker build -t tff-algos .
#     docker run --rm -v "$PWD/results:/suite/results" tff-algos \
#         --task=synthetic --algorithm=fedavg --total_rounds=10 --clients_per_round=10 \
#         --client_batch_size=10 --client_learning_rate=0.01
#     docker build --build-arg GPU=1 -t tff-algos-gpu . && docker run --rm --gpus all tff-algos-gpu ...
FROM python:3.11-slim-bookworm
ARG GPU=0
ARG STACK=current
ENV VENV=.venv STACK=$STACK
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /suite
COPY Makefile requirements.txt requirements-gpu.txt ./
COPY stacks stacks
COPY tools/bare_import.py tools/
RUN if [ "$GPU" = 1 ]; then make venv-gpu; else make venv; fi
COPY . .
ENV PATH=/suite/.venv/bin:$PATH
ENTRYPOINT ["python", "run_experiment.py"]
CMD ["--help"]
