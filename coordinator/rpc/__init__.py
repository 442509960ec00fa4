"""The coordinator's gRPC side: one asyncio loop on one thread that serves TaskManagers, JobMasters and clients."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # before anything here imports gRPC
