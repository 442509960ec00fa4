"""A job in this process, without Java, sockets and services: coordinator and tasks on one event loop, tasks on threads
if wanted."""
