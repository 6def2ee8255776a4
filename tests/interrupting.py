"""Ctrl-C at a chosen line: a tracer that raises KeyboardInterrupt when the engine has run that many lines of its own code."""
import linecache


def interrupt_at(line, but=("fake_runner",)):
    """For `sys.settrace`. Files whose path has one of ``but`` do not count, nor does what puts things right afterwards.

    A ``with`` of a lock does not count either: a tracer can come between the end of its block and the release, a signal cannot.
    """
    lines = 0

    def trace(frame, kind, arg):
        nonlocal lines
        code = frame.f_code
        if "paged_edu" not in code.co_filename or code.co_name in ("recover", "_change", "reset", "__init__", "step"):
            return None
        if kind == "line" and not any(part in code.co_filename for part in but) and not _takes_a_lock(frame):
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return trace

    return trace


def _takes_a_lock(frame):
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return text.startswith("with ") and text.endswith(("lock:", "gate:"))
