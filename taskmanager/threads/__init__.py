"""The threads of a TaskManager's tasks: who runs when, and what runs beside a task."""
