"""The coordinator's gRPC side: one asyncio loop on one thread that serves TaskManagers, JobMasters and clients."""
