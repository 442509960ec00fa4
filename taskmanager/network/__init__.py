"""The pure cores of the exchange between tasks: queues of both ends, credits, input gates, watermarks per channel."""
