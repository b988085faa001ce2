"""Where the gpumem command begins, before anything of it is loaded.

Owns: Ctrl-C in the tenth of a second that loading takes. Must not know: any command.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Loads the command and runs it; until it runs Ctrl-C ends the process at once, without a traceback."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpumem_cli.main import main as run

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
