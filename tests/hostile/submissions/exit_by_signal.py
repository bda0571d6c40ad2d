# attack: kills itself by every signal there is, in the hope that one counts as success
import os
import signal


def totals(batches):
    for number in sorted(signal.valid_signals() - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}):
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit
