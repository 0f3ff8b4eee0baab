"""Calls as users make them: functions, methods, options, results and the context of a running call."""
